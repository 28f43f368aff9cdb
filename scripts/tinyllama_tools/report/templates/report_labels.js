// Names inside the plots: short enough for the room there is, and none upon another.

const LETTER_SHARE = 0.56; // mean width of a letter, of the font's size
const MOST_OF_THE_WIDTH = 0.42;
const LONG_NAME = 30; // letters
const HEIGHT_WITHOUT_ROWS = 110; // pixels
const MOST_CATEGORIES = 24;
const HOVER_LETTERS_ON_A_PHONE = 36;

function shortened(text, letters) {
  if (text.length <= letters) return text;
  const front = Math.ceil((letters - 1) * 0.6);
  return `${text.slice(0, front)}\u2026${text.slice(text.length - (letters - 1 - front))}`;
}

// "attention/backward/..." over several lines, each of at most so many letters where the name has a slash or a space.
function folded(text, letters) {
  if (text.length <= letters || text.includes("<br>")) return text;
  const lines = [""];
  for (const part of text.split(/(?<=[/ ])/)) {
    const last = lines.length - 1;
    if (lines[last] && lines[last].length + part.length > letters) lines.push(part);
    else lines[last] += part;
  }
  return lines.join("<br>");
}

// Names without the parts that all of them share ("/tiny/f32/batch:8/seq:128"), as far as they are cases' names.
function distinctParts(names) {
  const counts = names.map((name) => name.split("/").length);
  const usual = counts.reduce((best, count) => (counts.filter((one) => one === count).length
    > counts.filter((one) => one === best).length ? count : best), 0);
  const split = names.filter((_, index) => counts[index] === usual).map((name) => name.split("/"));
  if (usual < 3 || split.length < 2) return names;
  const differs = split[0].map((part, index) => split.some((parts) => parts[index] !== part));
  differs[0] = true;
  return names.map((name, index) => (counts[index] === usual
    ? name.split("/").filter((_, at) => differs[at]).join("/") : name));
}

// Long names of categories at the left: without what they share, cut in the middle if need be; hovering has them in full.
function shortenCategories(traces, layout) {
  const names = new Set();
  for (const trace of traces) {
    if ((trace.yaxis || "y") !== "y" || !Array.isArray(trace.y)) continue;
    for (const value of trace.y) if (typeof value === "string") names.add(value);
  }
  if (names.size === 0 || layout.yaxis.type === "date" || layout.yaxis.tickvals) return;
  const room = Math.floor((layout.width * MOST_OF_THE_WIDTH) / (layout.font.size * LETTER_SHARE));
  const all = [...names];
  if (all.every((name) => name.length <= Math.min(room, LONG_NAME))) return;
  const rowHeight = (layout.height - HEIGHT_WITHOUT_ROWS) / all.length;
  const lines = Math.max(1, Math.floor(rowHeight / (layout.font.size * 1.5)));
  const ticktext = distinctParts(all).map((name) => {
    const text = folded(name, room);
    return text.split("<br>").length <= lines ? text : shortened(name, room);
  });
  layout.yaxis = {...layout.yaxis, type: "category", tickmode: "array", tickvals: all, ticktext};
}

// Names of categories below: all of them, over several lines where that gives them room.
function foldCategories(traces, layout, width) {
  const own = traces.filter((trace) => (trace.xaxis || "x") === "x" && Array.isArray(trace.x));
  const names = [...new Set(own.flatMap((trace) => trace.x.filter((value) => typeof value === "string")))];
  const isCategory = layout.xaxis.type === "category" || (!layout.xaxis.type && names.some((name) => Number.isNaN(Number(name))));
  if (!isCategory || names.length === 0 || names.length > MOST_CATEGORIES || layout.xaxis.tickvals) return;
  const room = Math.floor((0.8 * width) / names.length / (layout.font.size * LETTER_SHARE)) - 1;
  const lines = names.map((name) => folded(name, room));
  // where they do not fit, plotly turns them, and lines that are turned would meet
  const fit = lines.every((text) => text.split("<br>").every((line) => line.trim().length <= room));
  const ticktext = fit ? lines : names;
  layout.xaxis = {...layout.xaxis, type: "category", tickmode: "array", tickvals: names, ticktext};
  const bars = traces.filter((trace) => trace.type === "bar").length;
  if (bars && layout.bargap === undefined) layout.bargap = Math.max(0.2, 0.8 - 0.2 * names.length);
}

// What hovering says where the figure does not: name, text, and both values with the titles of their axes.
function setHover(traces, layout) {
  const value = (key, trace) => {
    const title = layout[`${key}axis${(trace[`${key}axis`] || key).slice(1)}`]?.title?.text || "";
    const isNumber = typeof (trace[key] || [])[0] === "number";
    return `${title && `${title}: `}%{${key}${isNumber ? ":,.4~r" : ""}}`;
  };
  for (const trace of traces) {
    const isKnown = !trace.type || trace.type === "scatter" || trace.type === "bar";
    if (!isKnown || trace.hovertemplate || trace.hoverinfo) continue;
    const text = Array.isArray(trace.hovertext) ? "%{hovertext}<br>" : Array.isArray(trace.text) ? "%{text}<br>" : "";
    trace.hovertemplate = `<b>%{fullData.name}</b><br>${text}${value("x", trace)}<br>${value("y", trace)}<extra></extra>`;
  }
}

function foldHover(traces) {
  const fold = (value) => {
    if (typeof value === "string") return folded(value, HOVER_LETTERS_ON_A_PHONE);
    return Array.isArray(value) ? value.map(fold) : value;
  };
  for (const trace of traces) {
    for (const key of ["hovertext", "customdata"]) if (trace[key]) trace[key] = fold(trace[key]);
    if (trace.text && !(trace.mode || "").includes("text")) trace.text = fold(trace.text);
  }
}

// Titles of axes over several lines where the plot is too small for one.
function foldTitles(layout) {
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis\d*$/.test(name))) {
    const room = (key.startsWith("x") ? 0.5 * layout.width : 0.55 * layout.height) / (layout.font.size * LETTER_SHARE);
    const {title} = layout[key];
    if (title?.text) layout[key] = {...layout[key], title: {...title, text: folded(title.text, Math.floor(room))}};
  }
}

// Text beside points, and inside bars, that would lie upon earlier text is not shown; hovering has it.
function hideCrowdedTexts(place) {
  const boxes = [];
  const meets = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  for (const text of place.querySelectorAll(".annotation-text, .textpoint text, .bartext")) {
    const box = text.getBoundingClientRect();
    if (box.width === 0) continue;
    const isFixed = text.classList.contains("annotation-text");
    if (!isFixed && boxes.some((other) => meets(box, other))) text.style.display = "none";
    else boxes.push(box);
  }
}

// Of each entry, in pixels.
function legendWidths(traces, size) {
  const entries = traces.filter((trace) => trace.showlegend !== false && trace.name && trace.visible !== false);
  return entries.map((trace) => 46 + trace.name.length * size * LETTER_SHARE);
}

// Rows that the legend above a plot takes: plotly sets the names in columns of one width once a row is not enough.
function legendRows(traces, width, size) {
  const needed = legendWidths(traces, size);
  if (needed.length < 2) return 0;
  if (needed.reduce((sum, one) => sum + one, 0) <= width) return 1;
  return Math.ceil(needed.length / Math.max(1, Math.floor(width / Math.max(...needed))));
}
