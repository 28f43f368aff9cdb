// Puts the page to work: theme, contents, tables, plots, the comparison of two results. Without it texts and tables
// are there all the same.
(() => {
"use strict";

const NARROW = 560; // pixels
const PRINT_WIDTH = 660; // what A4 and Letter hold between their margins
const PNG = {format: "png", width: 800, height: 450, scale: 2}; // 1600 x 900 pixels, with letters for a slide
const MOST_DRAWN = 40, MOST_COMPARED = 500; // cases of a comparison
const SLOWER = "#d2601a", FASTER = "#2f7fd1"; // as document.py has them
const root = document.documentElement;
const all = (selector, place = document) => [...place.querySelectorAll(selector)];
const short = new Intl.NumberFormat("en-US", {maximumSignificantDigits: 4});

// What travels compressed in the page, so that it can be mailed: plotly, and the figures' data.
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

// ---- theme and contents

const systemDark = matchMedia("(prefers-color-scheme: dark)");

function connectTheme() {
  const chosen = root.dataset.theme;
  const follow = () => { root.dataset.theme = systemDark.matches ? "dark" : "light"; };
  if (!chosen) follow();
  systemDark.addEventListener("change", () => { follow(); redraw(); });
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("tiny-llama-report-theme", root.dataset.theme); } catch { /* it lasts while the page is open */ }
    redraw();
  });
}

function connectContents() {
  const links = all("#contents a");
  const seen = new IntersectionObserver((entries) => {
    for (const {target} of entries.filter((entry) => entry.isIntersecting)) {
      for (const link of links) {
        const isHere = link.hash === `#${target.id}`;
        link.toggleAttribute("aria-current", isHere);
        if (isHere) link.closest("ol").scrollTo({left: link.offsetLeft - 16});
      }
    }
  }, {rootMargin: "-25% 0px -70% 0px"});
  for (const link of links) seen.observe(document.getElementById(link.hash.slice(1)));
}

// ---- tables: sorted by a heading, filtered by words, copied

function connectTable(card) {
  const [body] = card.querySelector("table").tBodies;
  const heads = all("th", card);
  const search = card.querySelector("input");
  const valueOf = (cell) => {
    const number = Number(cell.dataset.v ?? cell.textContent.replace(/,/g, ""));
    return cell.className && !Number.isNaN(number) ? number : cell.textContent;
  };
  const byName = new Intl.Collator("en", {numeric: true});
  let rows = [...body.rows], column = 0, order = "none";

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
  const actions = {
    save: () => save(`${card.id}.csv`, csvOf([titles, ...[...body.rows].map((row) => [...row.cells].map(valueOf))])),
    markdown: async () => {
      const texts = [...body.rows].map((row) => [...row.cells].map((cell) => cell.textContent));
      const rule = heads.map((head) => (head.className ? "---:" : "---"));
      const lines = [titles, rule, ...texts].map((row) => `| ${row.map((text) => text.replace(/\|/g, "\\|")).join(" | ")} |`);
      const copied = navigator.clipboard.writeText(lines.join("\n") + "\n").then(() => "copied", (error) => `not copied: ${error.message}`);
      card.querySelector(".said").textContent = await copied;
    },
  };
  for (const button of all("button[data-action]", card)) button.addEventListener("click", actions[button.dataset.action]);
  // other rows: [[text or number, ...], ...]
  return (values) => {
    rows = values.map((row) => {
      const line = document.createElement("tr");
      for (const value of row) {
        const cell = line.insertCell();
        cell.textContent = typeof value === "number" ? short.format(value) : value;
        if (typeof value === "number") Object.assign(cell, {className: "n"}).dataset.v = value;
      }
      return line;
    });
    show();
  };
}

// ---- plots: drawn when they come near the window, again on a change of theme or width, all before printing

const figures = new Map(); // by the element that a plot is in
const near = new Set();

function layoutOf(figure, width, height) {
  const style = getComputedStyle(root);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const isNarrow = width < NARROW;
  const axis = {
    automargin: true, gridcolor: colour("grid"), linecolor: colour("line"), showline: true, zeroline: false, tickformat: ",.4~r", hoverformat: ",.4~r",
    fixedrange: isNarrow, title: {font: {size: isNarrow ? 11 : 13}},
  };
  const template = {layout: {
    paper_bgcolor: colour("panel"), plot_bgcolor: colour("panel"), xaxis: axis, yaxis: axis, margin: {l: 8, r: 14, t: 12, b: 8},
    font: {family: "system-ui, sans-serif", size: isNarrow ? 11 : 13, color: colour("text")}, hovermode: "closest", hoverlabel: {namelength: -1},
    legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom"}, bargap: 0.3,
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

function draw(place, wanted = place.clientWidth) {
  const figure = figures.get(place);
  const as = `${root.dataset.theme} ${wanted}`;
  if (!wanted || place.dataset.drawn === as) return;
  const height = heightOf(figure, wanted);
  place.style.height = `${height}px`;
  Plotly.react(place, figure.traces, layoutOf(figure, wanted, height), {displayModeBar: false});
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
  const keys = ["text", "error_y", "error_x"];
  const title = (axis) => figure.layout[axis].title.text;
  const rows = figure.traces.flatMap((trace) => trace.y.map((y, at) => [trace.name, trace.x[at], y, trace.text?.[at],
    ...keys.slice(1).flatMap((key) => [trace[key]?.arrayminus?.[at], trace[key]?.array?.[at]])]));
  const heads = ["series", title("xaxis"), title("yaxis"), "text", "y below", "y above", "x below", "x above"];
  return csvOf([heads, ...rows]);
}

// A data: address of the picture, for slides.
function pngOf(figure) {
  const layout = layoutOf(figure, PNG.width, PNG.height);
  const top = heightOf(figure, PNG.width) - figure.height + 78;
  const plain = (text) => text.replace(/</g, "&lt;");
  const subtitle = {text: plain(document.title), font: {size: 11}};
  const title = {text: `<b>${plain(figure.title)}</b>`, font: {size: 16}, subtitle, x: 0.02, y: 0.97, yanchor: "top"};
  return Plotly.toImage({data: figure.traces, layout: {...layout, title, margin: {l: 16, r: 16, t: top, b: 12}}}, PNG);
}

function addPlot(card, figure) {
  const place = card.querySelector(".plot");
  figures.set(place, figure);
  delete place.dataset.drawn;
  nearness.observe(place);
  if (near.has(place)) draw(place);
}

function connectFigure(card) {
  const shown = () => figures.get(card.querySelector(".plot"));
  const actions = {
    csv: () => save(`${card.dataset.figure}.csv`, pointsCsv(shown())),
    png: () => pngOf(shown()).then((address) => save(`${card.dataset.figure}.png`, address)),
  };
  for (const button of all("button[data-action]", card)) button.addEventListener("click", actions[button.dataset.action]);
}

function connectPrinting() {
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    for (const folded of all("details")) folded.open = true;
    for (const place of figures.keys()) draw(place, PRINT_WIDTH);
  });
  addEventListener("afterprint", () => { root.dataset.theme = before; redraw(); });
}

// ---- two of the results against each other: ratios of single runs, and no verdict

function ratioFigure(rows) {
  const drawn = rows.slice(0, MOST_DRAWN).reverse();
  // in two lines, and no markup: it comes from a file
  const label = (name) => name.replace(/</g, "&lt;").replace(/^((?:[^/]*\/){2})/, "$1<br>");
  const trace = (name, color, symbol, has) => {
    const own = drawn.filter((row) => has(row[3]));
    const text = own.map((row) => `${short.format(row[1])} ms to ${short.format(row[2])} ms`);
    return {type: "scatter", mode: "markers", name, marker: {color, symbol, size: 10}, x: own.map((row) => row[3]), y: own.map((row) => label(row[0])), text};
  };
  const traces = [
    trace("slower", SLOWER, "triangle-right", (ratio) => ratio > 1), trace("faster", FASTER, "triangle-left", (ratio) => ratio <= 1),
  ].filter((one) => one.x.length);
  const layout = {
    xaxis: {type: "log", title: {text: "time of the new / time of the base"}},
    yaxis: {type: "category", categoryorder: "array", categoryarray: drawn.map((row) => label(row[0])), title: {text: ""}},
    shapes: [{type: "line", x0: 1, x1: 1, y0: 0, y1: 1, yref: "paper", line: {dash: "dot", color: "#888"}}],
  };
  return {id: "comparison", title: "Ratios by size of change", traces, layout, height: 110 + 34 * drawn.length};
}

function connectComparison({cases, sets}, setRows) {
  const tool = document.getElementById("compare");
  const [base, other] = all("select", tool);
  const search = tool.querySelector(".choice input");
  const card = tool.querySelector(".card");
  let before = [];
  const at = (sorted, share) => short.format(sorted[Math.round(share * (sorted.length - 1))]);

  function show() {
    // the same result on both sides would say nothing: the other side takes the one that was left
    if (base.value === other.value) (base.value === before[1] ? other : base).value = before[base.value === before[1] ? 0 : 1];
    before = [base.value, other.value];
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const [one, two] = before.map((value) => sets[Number(value)].seconds);
    const rows = cases.map((name, i) => [name, 1e3 * one[i], 1e3 * two[i], two[i] / one[i], 100 * (two[i] / one[i] - 1)])
      .filter((row) => row[1] > 0 && row[2] > 0 && words.every((word) => row[0].toLowerCase().includes(word)))
      .sort((a, b) => Math.abs(Math.log(b[3])) - Math.abs(Math.log(a[3])));
    const only = (a, b) => cases.filter((_, i) => a[i] > 0 && !(b[i] > 0)).length;
    const ratios = rows.map((row) => row[3]).sort((a, b) => a - b);
    const spread = rows.length ? ` Median ratio ${at(ratios, 0.5)}; nine in ten lie between ${at(ratios, 0.05)} and ${at(ratios, 0.95)}.` : "";
    tool.querySelector("[role=status]").textContent =
      `${rows.length} cases in both; ${only(one, two)} only in the base, ${only(two, one)} only in the new.${spread}`;
    setRows(rows.slice(0, MOST_COMPARED));
    card.hidden = rows.length === 0;
    if (rows.length) addPlot(card, ratioFigure(rows));
  }
  for (const control of [base, other, search]) control.addEventListener("input", show);
  show();
}

async function start() {
  const [data, plotly] = await Promise.all(["packed-data", "packed-plotly"].map(unpacked));
  const script = document.createElement("script");
  script.textContent = plotly;
  document.head.append(script);
  const page = JSON.parse(data);
  const tables = new Map(all(".table-card").map((card) => [card.id, connectTable(card)]));
  for (const card of all("[data-figure]")) {
    connectFigure(card);
    const figure = page.figures[card.dataset.figure];
    if (figure) addPlot(card, figure);
  }
  if (document.getElementById("compare")) connectComparison(page.comparison, tables.get("table-comparison"));
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 150); });
  connectPrinting();
  window.reportPng = (id) => pngOf(page.figures[id]);
}

connectTheme();
connectContents();
window.reportReady = start();
window.reportReady.catch((error) => {
  console.error(error);
  document.getElementById("trouble").hidden = false;
});
})();
