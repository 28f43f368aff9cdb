// What travels compressed in the page, so that it can be mailed: plotly, and the data of tables and plots.

async function unpacked(id) {
  const letters = atob(document.getElementById(id).textContent.trim());
  const bytes = Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function loadPlotly(source) {
  const script = document.createElement("script");
  script.textContent = source;
  document.head.append(script);
}
