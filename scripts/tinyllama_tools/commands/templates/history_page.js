"use strict";
// Draws the charts of a history page as they come into view; everything else is in the HTML already.
const machines = JSON.parse(document.getElementById("data").textContent);
const UNITS = [[1, "s"], [1e3, "ms"], [1e6, "us"], [1e9, "ns"]];
const MOST_TICKS = 6;

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;");

// the unit in which the largest time has at least one digit before the point
function unitOf(seconds) {
  const largest = Math.max(...seconds);
  return UNITS.find(([scale]) => largest * scale >= 1) || UNITS[UNITS.length - 1];
}

function hoverText(file) {
  const committed = file.committed ? ", committed " + file.committed : "";
  return `<b>${escaped(file.label)}</b>${committed}<br>measured ${escaped(file.date)}` +
    `<br>libtorch ${escaped(file.torch)}, result ${file.number}`;
}

function tracesOf(one, files, scale, unit) {
  const indices = one.files.map((_, index) => index);
  const series = {
    x: indices, y: one.seconds.map((value) => value * scale), mode: "lines+markers", name: "median of a file",
    line: {color: colour("series"), width: 1}, marker: {color: colour("series"), size: 6},
    text: files.map(hoverText), hovertemplate: "%{y:.4g} " + unit + "<br>%{text}<extra></extra>",
  };
  const levels = one.levels.map(([from, level], index) => {
    const until = index + 1 < one.levels.length ? one.levels[index + 1][0] : one.files.length;
    return {
      x: [from - 0.4, until - 0.6], y: [level * scale, level * scale], mode: "lines", hoverinfo: "skip",
      line: {color: colour("level"), width: 2, dash: "dash"},
    };
  });
  return [series, ...levels];
}

function layoutOf(one, files, unit) {
  const every = Math.max(1, Math.ceil(files.length / MOST_TICKS));
  const ticks = files.map((_, index) => index).filter((index) => index % every === 0);
  const axis = {color: colour("quiet"), gridcolor: colour("line"), linecolor: colour("line"), zeroline: false};
  const changes = one.changes;
  return {
    margin: {l: 50, r: 10, t: 24, b: 40}, showlegend: false, hovermode: "closest",
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("text"), size: 11},
    xaxis: {...axis, tickvals: ticks, ticktext: ticks.map((index) => files[index].label.slice(0, 8)), fixedrange: true},
    yaxis: {...axis, title: {text: unit}, fixedrange: true},
    shapes: changes.map((change) => ({
      type: "line", x0: change.index - 0.5, x1: change.index - 0.5, y0: 0, y1: 1, yref: "paper",
      line: {color: colour("level"), width: 1, dash: "dot"},
    })),
    annotations: changes.map((change) => ({
      x: change.index - 0.5, y: 1, yref: "paper", yanchor: "bottom", text: change.change, showarrow: false,
      font: {color: colour("level")},
    })),
  };
}

function draw(place) {
  const machine = machines[Number(place.dataset.machine)];
  const one = machine.cases[Number(place.dataset.case)];
  const files = one.files.map((index) => machine.files[index]);
  const [scale, unit] = unitOf(one.seconds);
  Plotly.react(place, tracesOf(one, files, scale, unit), layoutOf(one, files, unit),
    {responsive: true, displayModeBar: false});
  place.dataset.drawn = "yes";
}

const places = [...document.querySelectorAll(".chart")];
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting) { watcher.unobserve(entry.target); draw(entry.target); }
  }
}, {rootMargin: "600px"});
places.forEach((place) => watcher.observe(place));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  places.filter((place) => place.dataset.drawn).forEach(draw);
});

document.getElementById("search").addEventListener("input", (event) => {
  const wanted = event.target.value.toLowerCase();
  for (const one of document.querySelectorAll(".case")) one.hidden = !one.dataset.name.toLowerCase().includes(wanted);
});

// a change point's link shows the rows of the results that follow it
for (const link of document.querySelectorAll("a[data-block]")) {
  link.addEventListener("click", () => {
    document.querySelectorAll("tr.marked").forEach((row) => row.classList.remove("marked"));
    for (const number of link.dataset.block.split(",")) {
      const row = document.getElementById("result-" + number);
      row.closest("details").open = true;
      row.classList.add("marked");
    }
  });
}
