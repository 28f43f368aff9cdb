// Puts the page to work: tables are sorted and filtered, plots drawn, printed and saved. Without it texts and tables are
// there all the same.
(() => {
"use strict";

const NARROW = 560; // pixels
const PRINT_WIDTH = 660; // what A4 and Letter hold between their margins
const PNG = {format: "png", width: 800, height: 450, scale: 2}; // 1600 x 900 pixels, with letters for a slide
const LIGHT = {panel: "#ffffff", text: "#1b2026", line: "#dcdfe3", grid: "#eceef0"}; // as the style sheet has them
const DARK = {panel: "#161b20", text: "#e7eaed", line: "#2d353d", grid: "#222930"};
const dark = matchMedia("(prefers-color-scheme: dark)");
const all = (selector, place = document) => [...place.querySelectorAll(selector)];

// What travels compressed in the page, so that it can be mailed: plotly, and the figures.
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function save(name, content) {
  const link = document.createElement("a");
  link.href = content.startsWith("data:") ? content : URL.createObjectURL(new Blob([content]));
  link.download = name;
  link.click();
}

// RFC 4180
function csvOf(rows) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return rows.map((row) => row.map(field).join(",") + "\r\n").join("");
}

// ---- tables: sorted by a heading, filtered by words, saved

function connectTable(card) {
  const [body] = card.querySelector("table").tBodies;
  const heads = all("th", card);
  const search = card.querySelector("input");
  const valueOf = (cell) => {
    const number = Number(cell.dataset.v ?? cell.textContent.replace(/,/g, ""));
    return cell.className && !Number.isNaN(number) ? number : cell.textContent;
  };
  const byName = new Intl.Collator("en", {numeric: true});
  const rows = [...body.rows];
  let column = 0, order = "none";

  // cells without a value come last, whatever the direction
  function compare(a, b) {
    const [one, other] = [a, b].map((row) => valueOf(row.cells[column]));
    if (one === "\u2013" || other === "\u2013") return (one === "\u2013") - (other === "\u2013");
    const numbers = typeof one === "number" && typeof other === "number";
    return (numbers ? one - other : byName.compare(one, other)) * (order === "descending" ? -1 : 1);
  }
  function show() {
    const words = (search?.value || "").toLowerCase().split(/\s+/).filter(Boolean);
    const shown = rows.filter((row) => words.every((word) => row.textContent.toLowerCase().includes(word)));
    if (order !== "none") shown.sort(compare);
    body.replaceChildren(...shown);
  }
  heads.forEach((head, index) => head.querySelector("button").addEventListener("click", () => {
    const next = {none: "ascending", ascending: "descending", descending: "none"};
    order = index === column ? next[order] : "ascending";
    column = index;
    heads.forEach((one, at) => one.setAttribute("aria-sort", at === index ? order : "none"));
    show();
  }));
  search?.addEventListener("input", show);
  const titles = heads.map((head) => head.innerText.trim());
  card.querySelector("[data-action=csv]").addEventListener("click", () => {
    save(`${card.id}.csv`, csvOf([titles, ...[...body.rows].map((row) => [...row.cells].map(valueOf))]));
  });
}

// ---- plots: drawn when they come near the window, again on a change of colours or width, all before printing

const figures = new Map(); // by the element that a plot is in
const near = new Set();

function layoutOf(figure, width, height, colours) {
  const isNarrow = width < NARROW;
  const size = isNarrow ? 11 : 13;
  const axis = {
    automargin: true, gridcolor: colours.grid, linecolor: colours.line, showline: true, zeroline: false,
    tickformat: ",.4~r", hoverformat: ",.4~r", fixedrange: isNarrow, title: {font: {size}},
  };
  const template = {layout: {
    paper_bgcolor: colours.panel, plot_bgcolor: colours.panel, xaxis: axis, yaxis: axis,
    font: {family: "system-ui, sans-serif", size, color: colours.text}, margin: {l: 8, r: 14, t: 12, b: 8},
    hovermode: "closest", hoverlabel: {namelength: -1}, legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom"}, bargap: 0.3,
  }};
  return {...figure.layout, template, width, height};
}

// The legend above a plot takes rows of its own.
function heightOf(figure, width) {
  const names = figure.traces.filter((trace) => trace.showlegend !== false).map((trace) => trace.name || "");
  const widest = Math.max(0, ...names.map((name) => 50 + 7 * name.length));
  const rows = names.length > 1 ? Math.ceil(names.length / Math.max(1, Math.floor((width - 60) / widest))) : 0;
  return figure.height + 20 * rows;
}

function draw(place, width = place.clientWidth, colours = dark.matches ? DARK : LIGHT) {
  const figure = figures.get(place);
  const as = `${colours.panel} ${width}`;
  if (!width || place.dataset.drawn === as) return;
  const height = heightOf(figure, width);
  place.style.height = `${height}px`;
  Plotly.react(place, figure.traces, layoutOf(figure, width, height, colours), {displayModeBar: false});
  place.dataset.drawn = as;
  performance.mark("plot-drawn");
}

const redraw = () => near.forEach((place) => draw(place));

const nearness = new IntersectionObserver((entries) => {
  for (const {target, isIntersecting} of entries) {
    if (isIntersecting) near.add(target); else near.delete(target);
  }
  redraw();
}, {rootMargin: "500px"});

// Every point a line, with what else its trace has a value a point for.
function pointsCsv(figure) {
  const title = (axis) => figure.layout[axis].title.text;
  const rows = figure.traces.flatMap((trace) => trace.y.map((y, at) => [trace.name, trace.x[at], y, trace.text?.[at],
    ...["error_y", "error_x"].flatMap((key) => [trace[key]?.arrayminus?.[at], trace[key]?.array?.[at]])]));
  const heads = ["series", title("xaxis"), title("yaxis"), "text", "y below", "y above", "x below", "x above"];
  return csvOf([heads, ...rows]);
}

// A data: address of the picture, for slides.
function pngOf(figure) {
  const layout = layoutOf(figure, PNG.width, PNG.height, LIGHT);
  const top = heightOf(figure, PNG.width) - figure.height + 78;
  const plain = (text) => text.replace(/</g, "&lt;");
  const subtitle = {text: plain(document.title), font: {size: 11}};
  const title = {text: `<b>${plain(figure.title)}</b>`, font: {size: 16}, subtitle, x: 0.02, y: 0.97, yanchor: "top"};
  return Plotly.toImage({data: figure.traces, layout: {...layout, title, margin: {l: 16, r: 16, t: top, b: 12}}}, PNG);
}

function connectFigure(card, figure) {
  const place = card.querySelector(".plot");
  figures.set(place, figure);
  nearness.observe(place);
  const actions = {
    csv: () => save(`${figure.id}.csv`, pointsCsv(figure)),
    png: () => pngOf(figure).then((address) => save(`${figure.id}.png`, address)),
  };
  for (const button of all("button", card)) button.addEventListener("click", actions[button.dataset.action]);
}

async function start() {
  const [data, plotly] = await Promise.all(["packed-data", "packed-plotly"].map(unpacked));
  const script = document.createElement("script");
  script.textContent = plotly;
  document.head.append(script);
  const drawn = JSON.parse(data);
  all(".table-card").forEach(connectTable);
  for (const card of all("[data-figure]")) connectFigure(card, drawn[card.dataset.figure]);
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 150); });
  dark.addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    for (const folded of all("details")) folded.open = true;
    for (const place of figures.keys()) draw(place, PRINT_WIDTH, LIGHT);
  });
  addEventListener("afterprint", redraw);
  window.reportPng = (id) => pngOf(drawn[id]);
}

window.reportReady = start();
window.reportReady.catch((error) => {
  console.error(error);
  document.getElementById("trouble").hidden = false;
});
})();
