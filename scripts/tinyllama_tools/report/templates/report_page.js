// Puts the page to work: data, tables, plots, comparison. Without it the texts and the first rows are there all the same.

async function start() {
  const [data, plotly] = await Promise.all(["packed-data", "packed-plotly"].map(unpacked));
  const document_ = JSON.parse(data);
  styles = document_.styles;
  for (const card of document.querySelectorAll(".table-card[data-table]")) {
    new TableView(card, document_.tables[card.dataset.table]);
  }
  loadPlotly(plotly);
  for (const card of document.querySelectorAll(".figure[data-figure]")) {
    connectFigure(card);
    addPlot(document_.figures[card.dataset.figure], card.querySelector(".plot"));
  }
  connectComparison(document_.comparison);
  addEventListener("beforeprint", drawForPrinting);
  addEventListener("afterprint", restoreAfterPrinting);
  window.reportPng = pngOf;
}

connectTheme();
connectContents();
connectWidth();
document.documentElement.classList.add("has-script");
window.reportReady = "DecompressionStream" in window ? start() : Promise.reject(new Error("no DecompressionStream"));
window.reportReady.catch((error) => {
  console.error(error);
  document.getElementById("trouble").hidden = false;
});
