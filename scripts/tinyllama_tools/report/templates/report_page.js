// Sorts, filters and saves tables, and draws plots. Texts and tables are complete without it.
(() => {
"use strict";

const PNG = {format: "png", width: 800, height: 450, scale: 2}; // 1600 x 900 pixels, with letters for a slide
const all = (selector, place = document) => [...place.querySelectorAll(selector)];

// plotly and the figures are compressed in the page, so that it can be mailed.
async function unpacked(id) {
  const packed = await fetch(`data:application/gzip;base64,${document.getElementById(id).textContent}`);
  return new Response(packed.body.pipeThrough(new DecompressionStream("gzip")));
}

// ---- tables: sorted by a heading, filtered by words, saved

function connectTable(card) {
  const [body] = card.querySelector("table").tBodies;
  const heads = all("th", card);
  const byName = new Intl.Collator("en", {numeric: true});
  // a cell has its value beside it where its text is another; a text of digits alone is a number
  const valueOf = ({dataset, textContent}) => Number.isNaN(Number(dataset.v ?? textContent)) ? textContent : Number(dataset.v ?? textContent);
  const rows = [...body.rows];

  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const isUp = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((one) => one.setAttribute("aria-sort", one !== head ? "none" : isUp ? "ascending" : "descending"));
    // cells without a value come last, whatever the direction
    rows.sort((a, b) => {
      const [one, other] = [a, b].map((row) => valueOf(row.cells[column]));
      if (one === "\u2013" || other === "\u2013") return (one === "\u2013") - (other === "\u2013");
      const numbers = typeof one === "number" && typeof other === "number";
      return (numbers ? one - other : byName.compare(one, other)) * (isUp ? 1 : -1);
    });
    body.append(...rows);
  }));
  card.querySelector("input")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/);
    for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  });
  card.querySelector("[data-action=csv]").addEventListener("click", () => {
    const names = heads.map((head) => head.dataset.field);
    const shown = [...body.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map(valueOf));
    const field = (value) => value === "\u2013" ? "" : `"${String(value).replace(/"/g, '""')}"`; // RFC 4180
    const lines = [names, ...shown].map((row) => row.map(field).join(",") + "\r\n");
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob(lines));
    link.download = `${card.id}.csv`;
    link.click();
  });
}

// ---- plots

function layoutOf(figure, more) {
  const size = figure.small ? 10 : 12;
  const axis = {automargin: true, title: {font: {size}, standoff: 6}, tickfont: {size}, gridcolor: "#eceef0", linecolor: "#dcdfe3", showline: true, zeroline: false,
    tickformat: ",.4~r", hoverformat: ",.4~r"};
  const template = {layout: {
    xaxis: axis, yaxis: {...axis, nticks: figure.small ? (figure.layout.yaxis.type === "log" ? 3 : 5) : 0}, font: {family: "system-ui, sans-serif", size: 12, color: "#1b2026"}, margin: {l: 8, r: 14, t: 12, b: 8},
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "closest", hoverlabel: {namelength: -1}, legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal"}, bargap: 0.3,
    dragmode: innerWidth < 560 ? false : "zoom", // a finger scrolls
  }};
  return {...figure.layout, template, ...more};
}

// A data: address of the picture, for slides.
function pngOf(figure) {
  const plain = (text) => text.replace(/</g, "&lt;");
  const subtitle = {text: plain(document.title), font: {size: 11}};
  const title = {text: `<b>${[figure.title, figure.device].filter(Boolean).map(plain).join(" \u00b7 ")}</b>`, font: {size: 16}, subtitle, x: 0.02, y: 0.97, yanchor: "top"};
  const margin = {l: 16, r: 16, t: 78, b: 12};
  // above the plot it would meet the title
  const legend = {orientation: "v", x: 1.01, y: 1, yanchor: "top"};
  return Plotly.toImage({data: figure.traces, layout: layoutOf(figure, {title, margin, legend, showlegend: true, paper_bgcolor: "#fff"})}, PNG);
}

async function start() {
  const [data, plotly] = await Promise.all(["packed-data", "packed-plotly"].map(unpacked));
  const figures = await data.json();
  // loaded from an address of its own, it is compiled while the browser reads on
  const script = document.createElement("script");
  script.src = URL.createObjectURL(new Blob([await plotly.arrayBuffer()], {type: "text/javascript"}));
  await new Promise((resolve, reject) => {
    Object.assign(script, {onload: resolve, onerror: reject});
    document.head.append(script);
  });
  const config = {responsive: true, displaylogo: false, modeBarButtons: [["toImage"]], toImageButtonOptions: PNG};
  window.reportPng = (id) => pngOf(figures[id]);
  const drawn = new Map(); // by place, a promise of its plot
  const draw = (place) => {
    const figure = figures[place.closest("[data-figure]").dataset.figure];
    if (!drawn.has(place)) place.replaceChildren(); // without the bars that stood for it
    if (!drawn.has(place)) drawn.set(place, Plotly.newPlot(place, figure.traces, layoutOf(figure, {height: figure.height}), config));
    return drawn.get(place);
  };
  window.reportDraw = () => Promise.all(all(".plot").map(draw));
  // each when it is nearly in view: thousands of points take seconds
  const seen = new IntersectionObserver((entries) => {
    for (const {isIntersecting, target} of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      draw(target);
    }
  }, {rootMargin: "300px"});
  all(".plot").forEach((place) => seen.observe(place));
  if (document.readyState === "loading") await new Promise((next) => document.addEventListener("DOMContentLoaded", next));
  all(".plot").forEach((place) => drawn.has(place) || seen.observe(place));
  // on paper every plot is drawn, as wide as its column
  addEventListener("beforeprint", () => {
    document.documentElement.classList.add("paper");
    window.reportDraw();
    drawn.forEach((_, place) => Plotly.Plots.resize(place));
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("paper");
    drawn.forEach((_, place) => Plotly.Plots.resize(place));
  });
}

window.reportReady = start();
window.reportReady.catch((error) => {
  console.error(error);
  document.getElementById("trouble").hidden = false;
});
addEventListener("DOMContentLoaded", () => all(".table-card").forEach(connectTable));
})();
