// The plots: drawn when they come near the window, again on a change of theme or width, all at once before printing.

const NARROW = 560; // pixels
const PRINT_WIDTH = {whole: 660, column: 318}; // what A4 and Letter hold between their margins
const TALLEST_PRINT = 860;
const PNG = {width: 800, height: 450, scale: 2}; // 1600 x 900 pixels, with letters for a slide
const MOST_LEGEND_ROWS_OF_A_SLIDE = 2;
const NEAR = "500px";

const plots = new Map(); // by the figure's id: {figure, place, height, isFirst, isNear, drawnAs}
const isTouch = matchMedia("(pointer: coarse)").matches;
let styles = null; // report_theme.json
let queue = Promise.resolve();
window.reportPlots = {};

function lookOf(plot, theme) {
  const width = Math.floor(plot.place.clientWidth);
  return {theme, width, height: plot.height, isNarrow: width < NARROW, isTouch};
}

function partsOf(figure, look) {
  const theme = styles[look.theme];
  const data = themedTraces(figure.traces, theme, styles);
  const layout = themedLayout(figure.layout, theme, look, data.some((trace) => trace.legendgroup));
  const rows = layout.showlegend === false ? 0 : legendRows(data, look.width - 80, layout.font.size);
  layout.showlegend = layout.showlegend ?? rows > 0;
  const legendHeight = rows * Math.ceil(layout.font.size * 1.5);
  const isAside = look.isSlide && rows > MOST_LEGEND_ROWS_OF_A_SLIDE;
  const width = isAside ? look.width - Math.max(...legendWidths(data, layout.font.size)) : look.width;
  if (!look.isSlide) layout.height += legendHeight;
  foldTitles(layout);
  shortenCategories(data, layout);
  foldCategories(data, layout, width);
  setHover(data, layout);
  if (look.isNarrow) foldHover(data);
  return {data, layout, legendHeight, isAside};
}

// How many of the figure's points plotly has put at a place, or found to have no value.
function pointsDrawn(place) {
  const isThere = (point) => (point.x !== undefined && point.y !== undefined) || (point.p !== undefined && point.s !== undefined);
  const isMissing = (trace, at) => (trace.x?.[at] ?? null) === null || (trace.y?.[at] ?? null) === null;
  const countOf = (trace, index) => {
    if (trace.visible !== true) return 0;
    if (trace.z) return trace.z.reduce((sum, row) => sum + (row.length ?? 1), 0);
    if (trace.type === "box" || trace.type === "violin") return Math.max((trace.y || []).length, (trace.x || []).length);
    return place.calcdata[index].filter((point, at) => isThere(point) || isMissing(trace, at)).length;
  };
  return place._fullData.reduce((sum, trace, index) => sum + countOf(trace, index), 0);
}

function drawAs(plot, look, isStill) {
  const {data, layout} = partsOf(plot.figure, look);
  plot.place.style.height = `${layout.height}px`;
  plot.drawnAs = `${look.theme} ${look.width}`;
  const done = Plotly.react(plot.place, data, layout, {displayModeBar: false, responsive: false, staticPlot: isStill});
  const state = window.reportPlots[plot.figure.id];
  return done.then(() => {
    hideCrowdedTexts(plot.place);
    if (!state.drawn) performance.mark("plot-drawn");
    Object.assign(state, {drawn: true, points: pointsDrawn(plot.place), theme: look.theme});
    plot.place.classList.add("drawn");
  });
}

function drawIfNeeded(plot) {
  const look = lookOf(plot, currentTheme());
  if (!plot.isNear && !plot.isFirst) return undefined;
  if (look.width === 0 || plot.drawnAs === `${look.theme} ${look.width}`) return undefined;
  return drawAs(plot, look, false);
}

const pause = () => new Promise((done) => { setTimeout(done, 0); });

// One after another, so that the page answers in between.
function enqueue(plot) {
  queue = queue.then(() => drawIfNeeded(plot)).catch((error) => console.error(plot.figure.id, error)).then(pause);
}

const nearness = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    const plot = plots.get(entry.target.dataset.plot);
    plot.isNear = entry.isIntersecting;
    if (plot.isNear) enqueue(plot);
  }
}, {rootMargin: NEAR});

// After a change of theme or width: what is near at once, the rest when it comes near.
function refreshPlots() {
  for (const plot of plots.values()) if (plot.isNear || plot.isFirst) enqueue(plot);
}

function addPlot(figure, place) {
  const known = plots.get(figure.id);
  const plot = known || {place, isFirst: plots.size === 0, isNear: false};
  Object.assign(plot, {figure, drawnAs: "", height: Number(place.dataset.height)});
  plots.set(figure.id, plot);
  window.reportPlots[figure.id] = {drawn: false, points: 0};
  if (!known) nearness.observe(place);
  // the first one does not wait for the reader
  if (known || plot.isFirst) enqueue(plot);
}

// Plotly draws these synchronously, so that the printed page has them.
function drawForPrinting() {
  for (const folded of document.querySelectorAll("details:not([open])")) {
    folded.open = true;
    folded.dataset.wasClosed = "yes";
  }
  for (const plot of plots.values()) {
    const width = plot.place.closest(".many") ? PRINT_WIDTH.column : PRINT_WIDTH.whole;
    const height = Math.min(Number(plot.place.dataset.printHeight), TALLEST_PRINT);
    drawAs(plot, {theme: "light", width, height, isNarrow: width < NARROW, isTouch}, true);
  }
}

function restoreAfterPrinting() {
  for (const folded of document.querySelectorAll("details[data-was-closed]")) {
    folded.open = false;
    delete folded.dataset.wasClosed;
  }
  refreshPlots();
}

// A data: address of the picture, for slides: light, with its title; a long legend at the right.
function pngOf(id) {
  const {figure} = plots.get(id);
  const look = {theme: "light", width: PNG.width, height: PNG.height, isNarrow: false, isTouch, isSlide: true};
  const {data, layout, legendHeight, isAside} = partsOf(figure, look);
  const theme = styles.light;
  const subtitle = {text: plain(document.title), font: {size: 11, color: theme.quiet}};
  const title = {text: `<b>${plain(figure.title)}</b>`, subtitle, x: 0.02, xanchor: "left", y: 0.96, yanchor: "top", font: {size: 17}};
  const aside = {...layout.legend, orientation: "v", x: 1.01, y: 1, yanchor: "top"};
  const margin = {l: 16, r: 16, t: isAside || !legendHeight ? 66 : 80 + legendHeight, b: 12, pad: 2};
  const slide = {...layout, title, legend: isAside ? aside : layout.legend, margin, height: PNG.height};
  return Plotly.toImage({data, layout: slide, config: {staticPlot: true}}, {format: "png", ...PNG});
}

// Every point a line: series, role, the coordinates, and what else the trace has a value a point for.
function pointsCsv(figure) {
  const axis = (key, fallback) => figure.layout?.[key]?.title?.text || fallback;
  const rows = [];
  let extras = [];
  const lists = figure.traces.map((trace) => Object.entries({
    ...trace, error_x: trace.error_x?.array, error_y: trace.error_y?.array, error_y_below: trace.error_y?.arrayminus,
  }).filter(([key, value]) => key !== "x" && key !== "y" && Array.isArray(value)));
  extras = [...new Set(lists.flatMap((list) => list.map(([key]) => key)))];
  figure.traces.forEach((trace, index) => {
    const own = Object.fromEntries(lists[index]);
    const count = Math.max((trace.x || []).length, (trace.y || []).length);
    for (let at = 0; at < count; at += 1) {
      const more = extras.map((key) => own[key]?.[at]).map((value) => (Array.isArray(value) ? value.join(" ") : value));
      rows.push([trace.name || "", trace.role || "", trace.x?.[at], trace.y?.[at], ...more]);
    }
  });
  return csvOf(["series", "role", axis("xaxis", "x"), axis("yaxis", "y"), ...extras], rows);
}

const FIGURE_ACTIONS = {
  csv: (figure) => save(`${figure.id}.csv`, pointsCsv(figure)),
  json: (figure) => save(`${figure.id}.json`, JSON.stringify(figure, null, 1) + "\n"),
  png: (figure) => pngOf(figure.id).then((address) => save(`${figure.id}.png`, address)),
};

function connectFigure(card) {
  const place = card.querySelector(".plot");
  for (const button of card.querySelectorAll("button[data-action]")) {
    button.addEventListener("click", () => FIGURE_ACTIONS[button.dataset.action](plots.get(place.dataset.plot).figure));
  }
}
