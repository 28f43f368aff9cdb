// Colours, marks and lines of the plots. A trace's role says how it is drawn (measured: filled marks; predicted: open
// ones; fit: a line); where one role has several traces, the series has the colour. Marks, dashes and patterns differ
// as well, so that nothing rests on colour.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const SERIES_ROLES = new Set(["measured", "fit", "predicted", "held_out"]);
const LINE_ROLES = new Set(["fit", "roof"]);
const SMALLEST_MARK = 5; // pixels
const SMALL_TAGS = /<(?!\/?(?:br|b|i|sub|sup|extra)\s*\/?>)/g;

// What plotly would take for markup; names come from files.
function plain(value) {
  if (typeof value === "string") return value.replace(SMALL_TAGS, "&lt;");
  if (Array.isArray(value)) return value.map(plain);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plain(inner)]));
  }
  return value;
}

const isObject = (value) => Boolean(value) && typeof value === "object" && !Array.isArray(value);

// `own` over `base`, deeply; neither is changed.
function merged(base, own) {
  const result = {...base};
  for (const [key, value] of Object.entries(own || {})) {
    result[key] = isObject(value) && isObject(base[key]) ? merged(base[key], value) : value;
  }
  return result;
}

function seeThrough(colour, share) {
  const parts = [1, 3, 5].map((from) => parseInt(colour.slice(from, from + 2), 16));
  return `rgba(${parts.join(",")},${share})`;
}

// Of each trace: its number among those of its role, and its series, which traces of a legend group share.
function seriesOf(traces) {
  const groups = [...new Set(traces.map((trace) => trace.legendgroup).filter(Boolean))];
  const counts = {};
  const inRole = traces.map((trace) => {
    const role = trace.role || "";
    counts[role] = (counts[role] || 0) + 1;
    return counts[role] - 1;
  });
  return traces.map((trace, index) => {
    const role = trace.role || "";
    const many = !role || (SERIES_ROLES.has(role) && counts[role] > 1);
    const own = trace.legendgroup ? groups.indexOf(trace.legendgroup) : inRole[index];
    // what is the same thing in several figures brings its number along
    const series = Number.isInteger(trace.series) ? trace.series : own;
    return {role, many, order: inRole[index], series: many ? series : 0};
  });
}

// Of the marks: smaller where there are many, the same in the whole figure.
function sizeOf(traces) {
  const marks = traces.filter((trace) => trace.mode !== "lines");
  const count = marks.reduce((sum, trace) => sum + (trace.y || []).length, 0);
  return count > 400 ? SMALLEST_MARK : count > 90 ? 7 : 9;
}

function scatterStyle(trace, place, colour, theme, styles, size) {
  const {symbols, dashes, role_symbols: roles} = styles;
  const {first, suffix} = roles[place.role] || {first: 0, suffix: ""};
  const symbol = symbols[(first + place.series) % symbols.length] + suffix;
  const dashed = place.role === "predicted" && !place.many;
  const dash = dashed ? "dash" : dashes[(place.role === "roof" ? place.order : place.series) % dashes.length];
  const isOpen = suffix !== "";
  const edge = isOpen ? 2 : size > SMALLEST_MARK ? 1 : 0;
  const style = {
    marker: {color: colour, symbol, size, line: {color: isOpen ? colour : theme.panel, width: edge}},
    line: {color: colour, dash, width: place.role === "roof" ? 2.5 : 2},
    error_x: {color: colour, thickness: 1.5, width: 4},
    error_y: {color: colour, thickness: 1.5, width: 4},
  };
  if (!trace.mode && LINE_ROLES.has(place.role)) style.mode = "lines";
  if (trace.fill && trace.fill !== "none") style.fillcolor = seeThrough(colour, 0.16);
  return style;
}

function barStyle(trace, order, colour, theme, styles) {
  const shape = styles.patterns[order % styles.patterns.length];
  const pattern = {shape, fillmode: "overlay", fgcolor: theme.panel, fgopacity: trace.text ? 0.3 : 0.55, size: 7, solidity: 0.22};
  const error = {color: theme.text, thickness: 1.5, width: 4};
  const text = {textposition: "inside", insidetextanchor: "middle", textangle: 0};
  return {marker: {color: colour, line: {color: theme.panel, width: 1}, pattern}, error_x: error, error_y: error, ...text};
}

function waterfallStyle(theme) {
  return {
    increasing: {marker: {color: theme.roles.measured}},
    decreasing: {marker: {color: theme.roles.light}},
    totals: {marker: {color: theme.roles.roof}},
    connector: {line: {color: theme.quiet, width: 1, dash: "dot"}},
  };
}

// An array of colours or sizes a point is the figure's own, and stays.
function themedTraces(traces, theme, styles) {
  const places = seriesOf(traces);
  const bars = traces.filter((trace) => trace.type === "bar");
  const size = sizeOf(traces);
  return traces.map((trace, index) => {
    const place = places[index];
    const colours = place.many ? theme.sequence : null;
    const colour = colours ? colours[place.series % colours.length] : theme.roles[place.role] || theme.sequence[0];
    const {role, series, ...own} = plain(trace);
    let style = {};
    if (!trace.type || trace.type.startsWith("scatter")) style = scatterStyle(trace, place, colour, theme, styles, size);
    else if (trace.type === "bar") style = barStyle(trace, bars.indexOf(trace), colour, theme, styles);
    else if (trace.type === "waterfall") style = waterfallStyle(theme);
    else if (trace.type === "heatmap") style = {colorscale: "Cividis"};
    else style = {marker: {color: colour}, line: {color: colour}};
    for (const error of ["error_x", "error_y"]) if (!own[error]) delete style[error];
    return merged(style, own);
  });
}

function axisOf(theme, own, isNarrow) {
  return {
    autotickangles: [0, -45, -90], color: theme.quiet, gridcolor: theme.grid, linecolor: theme.line, tickcolor: theme.line, showline: true,
    zeroline: false, ticks: "outside", ticklen: 4, automargin: true, title: {standoff: 10, font: {color: theme.text, size: isNarrow ? 11 : 13}},
    exponentformat: "power", minexponent: 6, separatethousands: true, fixedrange: isNarrow,
    ...(own.type === "log" ? {tickformat: ",.4~r", nticks: 3} : isNarrow ? {nticks: 6} : {}),
  };
}

function themedLayout(layout, theme, look, isGrouped) {
  const own = plain(layout || {});
  delete own.template;
  delete own.width;
  delete own.height;
  const size = look.isNarrow ? 11 : 13;
  const base = {
    autosize: false, width: look.width, height: look.height, margin: {l: 8, r: 14, t: 12, b: 8, pad: 2},
    paper_bgcolor: theme.panel, plot_bgcolor: theme.panel,
    font: {family: FONT, size, color: theme.text}, hovermode: "closest", dragmode: look.isTouch ? false : "zoom",
    hoverlabel: {bgcolor: theme.ground, bordercolor: theme.line, font: {family: FONT, size, color: theme.text},
      align: "left", namelength: -1},
    legend: {orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", bgcolor: "rgba(0,0,0,0)",
      font: {size}, title: {text: ""}, traceorder: isGrouped ? "grouped" : "normal", tracegroupgap: 2},
    uniformtext: {mode: "hide", minsize: 9},
    xaxis: axisOf(theme, own.xaxis || {}, look.isNarrow), yaxis: axisOf(theme, own.yaxis || {}, look.isNarrow),
  };
  for (const key of Object.keys(own)) {
    if (/^[xy]axis\d+$/.test(key)) base[key] = axisOf(theme, own[key], look.isNarrow);
  }
  const result = merged(base, own);
  for (const shape of result.shapes || []) {
    shape.line = merged({color: theme.quiet, width: 1, dash: "dot"}, shape.line);
    if (shape.type === "rect") shape.fillcolor ??= seeThrough(theme.quiet, shape.opacity ? 1 : 0.12);
  }
  return result;
}
