// Two of the results against each other, chosen in the page: ratios of single runs, and no verdict.

const MOST_DRAWN = 40;
const ROW_HEIGHT = 22;
const SAME = 0.005; // as a log-ratio: drawn as neither slower nor faster
const RATIO_TICKS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1, 1.02, 1.05, 1.1, 1.2, 1.3, 1.5, 2, 3, 5, 10];
const KINDS = [
  {name: "slower", role: "predicted", symbol: "triangle-right", has: (change) => change > SAME},
  {name: "within 0.5 %", role: "other", symbol: "circle-open", has: (change) => Math.abs(change) <= SAME},
  {name: "faster", role: "measured", symbol: "triangle-left", has: (change) => change < -SAME},
];

// Cases with a time on both sides: [name, base in ms, new in ms, ratio, change in %], largest change first.
function ratioRows(cases, base, other) {
  const rows = [];
  cases.forEach((name, index) => {
    const [before, after] = [base.seconds[index], other.seconds[index]];
    if (before > 0 && after > 0) rows.push([name, before * 1e3, after * 1e3, after / before, 100 * (after / before - 1)]);
  });
  return rows.sort((a, b) => Math.abs(Math.log(b[3])) - Math.abs(Math.log(a[3])));
}

function quantile(sorted, share) {
  const place = share * (sorted.length - 1);
  const [low, high] = [Math.floor(place), Math.ceil(place)];
  return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}

function ratioSentence(rows, cases, base, other) {
  const only = (a, b) => cases.filter((_, index) => a.seconds[index] > 0 && !(b.seconds[index] > 0)).length;
  const sides = `${fixed(only(base, other), 0)} only in the base, ${fixed(only(other, base), 0)} only in the new`;
  if (rows.length === 0) return `No case is in both results with this filter; ${sides}.`;
  const ratios = rows.map((row) => row[3]).sort((a, b) => a - b);
  const [low, middle, high] = [0.05, 0.5, 0.95].map((share) => fixed(quantile(ratios, share), 3));
  const drawn = rows.length > MOST_DRAWN ? ` The ${MOST_DRAWN} largest changes are drawn.` : "";
  return `${fixed(rows.length, 0)} cases in both; ${sides}. Median ratio ${middle}; nine in ten lie between ${low} and ${high}.${drawn}`;
}

// Those of the tick values that the range holds, with room for a label each.
function ratioTicks(low, high, most) {
  const inside = RATIO_TICKS.filter((value) => value >= low && value <= high);
  const gap = Math.log(high / low) / most;
  const kept = [1];
  const byDistance = [...inside].sort((a, b) => Math.abs(Math.log(b)) - Math.abs(Math.log(a)));
  for (const value of byDistance) {
    if (kept.every((other) => Math.abs(Math.log(value / other)) >= gap)) kept.push(value);
  }
  return kept.sort((a, b) => a - b);
}

function ratioFigure(rows, width) {
  const drawn = rows.slice(0, MOST_DRAWN);
  const ratios = drawn.map((row) => row[3]);
  const [low, high] = [Math.min(0.97, ...ratios) / 1.03, Math.max(1.03, ...ratios) * 1.03];
  const ticks = ratioTicks(low, high, width < NARROW ? 4 : 9);
  const traces = KINDS.map((kind) => {
    const own = drawn.filter((row) => kind.has(Math.log(row[3])));
    return {
      type: "scatter", mode: "markers", name: kind.name, role: kind.role, marker: {symbol: kind.symbol, size: 10, line: {width: 1}},
      x: own.map((row) => row[3]), y: own.map((row) => row[0]),
      customdata: own.map((row) => `${numberText(row[1], {digits: 4})} ms to ${numberText(row[2], {digits: 4})} ms`),
      hovertemplate: "%{y}<br>%{x:.4g} times the base: %{customdata}<extra></extra>",
    };
  }).filter((trace) => trace.x.length > 0);
  const stems = drawn.map((row) => ({
    type: "line", x0: 1, x1: row[3], y0: row[0], y1: row[0], line: {dash: "solid", width: 2}, opacity: 0.5, layer: "below",
  }));
  const layout = {
    xaxis: {type: "log", title: {text: "time of the new / time of the base"}, tickvals: ticks,
      ticktext: ticks.map((value) => `${value}×`), range: [Math.log10(low), Math.log10(high)]},
    yaxis: {type: "category", categoryorder: "array", categoryarray: drawn.map((row) => row[0]).reverse(),
      range: [-0.7, drawn.length - 0.3]},
    shapes: [{type: "line", x0: 1, x1: 1, y0: 0, y1: 1, yref: "paper", line: {dash: "solid", width: 1}}, ...stems],
    showlegend: true,
  };
  return {id: "comparison", title: "Ratios by size of change", note: "", traces, layout, points: drawn.length};
}

function connectComparison(data) {
  const section = document.getElementById("compare");
  if (!section) return;
  const [base, other] = ["base", "new"].map((side) => section.querySelector(`select[name=${side}]`));
  const search = section.querySelector("input[name=cases]");
  const sentence = section.querySelector(".ratio-sentence");
  const place = section.querySelector(".plot");
  const card = section.querySelector(".figure");
  const view = new TableView(section.querySelector(".table-card"), {id: "comparison", columns: data.columns, rows: []});

  function show() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [one, two] = [base, other].map((select) => data.sets[Number(select.value)]);
    const rows = ratioRows(data.cases, one, two).filter(([name]) => words.every((word) => name.toLowerCase().includes(word)));
    sentence.textContent = ratioSentence(rows, data.cases, one, two);
    view.setRows(rows);
    card.hidden = rows.length === 0;
    if (rows.length === 0) return;
    place.dataset.printHeight = place.dataset.height = String(96 + ROW_HEIGHT * Math.min(rows.length, MOST_DRAWN));
    addPlot(ratioFigure(rows, place.clientWidth), place);
  }

  // the same result on both sides would say nothing: the other side takes the one that was left
  function choose(changed, opposite) {
    if (changed.value === opposite.value) opposite.value = changed.dataset.before;
    for (const select of [base, other]) select.dataset.before = select.value;
    show();
  }

  for (const select of [base, other]) select.dataset.before = select.value;
  base.addEventListener("change", () => choose(base, other));
  other.addEventListener("change", () => choose(other, base));
  search.addEventListener("input", show);
  connectFigure(card);
  show();
}
