// Ticks of logarithmic axes as plain numbers: the values that were measured where they are few, else 1, 2, 5 or decades.

const FEWEST_PIXELS = 34; // between two labels
const FULL_NUMBERS = {least: 1e-3, most: 1e6};

function tickText(value) {
  if (value >= FULL_NUMBERS.least && value < FULL_NUMBERS.most) return Number(value.toPrecision(6)).toLocaleString("en-US", {maximumFractionDigits: 6});
  const [digits, exponent] = value.toExponential(5).split("e").map(Number);
  return `${digits === 1 ? "" : `${digits}×`}10<sup>${exponent}</sup>`;
}

// Equal steps of 1, 2 or 5 times a power of ten, about five of them.
function evenTicks(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
  const first = Math.ceil(low / step);
  return Array.from({length: Math.floor(high / step) - first + 1}, (_, index) => (first + index) * step).filter((one) => one > 0);
}

const smallest = (values) => values.reduce((least, value) => Math.min(least, value), Infinity);
const largest = (values) => values.reduce((most, value) => Math.max(most, value), -Infinity);

function logTicks(low, high) {
  const decades = Math.log10(high / low);
  if (decades < 0.8) return evenTicks(low, high);
  const every = Math.max(1, Math.round(decades / 7));
  const ticks = [];
  for (let exponent = Math.floor(Math.log10(low)) - 1; exponent <= Math.ceil(Math.log10(high)) + 1; exponent += 1) {
    if (exponent % every === 0) ticks.push(10 ** exponent);
    if (decades < 2.6) ticks.push(2 * 10 ** exponent, 5 * 10 ** exponent);
  }
  return ticks;
}

const hasMarks = (trace) => trace.mode !== "lines";

// Positive numbers on an axis, each once, in order: those of marks and bars, or those of lines.
function valuesOn(axis, traces, areMarks) {
  const letter = axis[0], id = letter + axis.slice("xaxis".length);
  const own = traces.filter((trace) => (trace[`${letter}axis`] || letter) === id && hasMarks(trace) === areMarks);
  const numbers = own.flatMap((trace) => (Array.isArray(trace[letter]) ? trace[letter] : []));
  return [...new Set(numbers.filter((value) => typeof value === "number" && value > 0))].sort((a, b) => a - b);
}

// Ends of the error bars of an axis, where they are above 0.
function errorEnds(axis, traces) {
  const letter = axis[0], id = letter + axis.slice("xaxis".length);
  const ends = [];
  for (const trace of traces) {
    const error = trace[`error_${letter}`];
    if (!Array.isArray(error?.array) || (trace[`${letter}axis`] || letter) !== id) continue;
    trace[letter].forEach((value, at) => {
      ends.push(value + error.array[at], value - (error.arrayminus ?? error.array)[at]);
    });
  }
  return ends.filter((value) => value > 0);
}

function measuredTicks(values, pixels) {
  if (values.length < 2 || values.length > 9) return null;
  const scale = pixels / Math.log(values[values.length - 1] / values[0]);
  const gaps = values.slice(1).map((value, index) => Math.log(value / values[index]) * scale);
  return Math.min(...gaps) >= FEWEST_PIXELS ? values : null;
}

// The logarithmic axes for which the figure gives no ticks of its own.
function logAxes(layout) {
  return Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key) && layout[key].type === "log"
    && !layout[key].tickvals && !layout[key].dtick);
}

function setLogTicks(traces, layout) {
  const axes = logAxes(layout);
  for (const key of axes) {
    const [measured, lines] = [true, false].map((areMarks) => valuesOn(key, traces, areMarks));
    const ends = [...measured, ...lines, ...errorEnds(key, traces)];
    const range = layout[key].range?.map((exponent) => 10 ** exponent) || [smallest(ends), largest(ends)];
    if (!(range[1] > range[0])) continue;
    const pixels = 0.8 * (key.startsWith("x") ? layout.width : layout.height * 0.6);
    const ticks = (key.startsWith("x") && measuredTicks(measured, pixels)) || logTicks(...range);
    layout[key] = {...layout[key], tickvals: ticks, ticktext: ticks.map(tickText)};
  }
  return axes;
}

// After zooming: ticks for what is in sight now.
function ticksInSight(place, axes) {
  const changes = {};
  for (const key of axes) {
    const [low, high] = place._fullLayout[key].range.map((exponent) => 10 ** exponent);
    const ticks = logTicks(low, high);
    if (String(ticks) === String(place.layout[key].tickvals)) continue;
    Object.assign(changes, {[`${key}.tickvals`]: ticks, [`${key}.ticktext`]: ticks.map(tickText)});
  }
  return changes;
}
