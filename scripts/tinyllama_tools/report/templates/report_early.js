"use strict";
// Before anything is painted: the theme that the reader chose last time.
try {
  const chosen = localStorage.getItem("tiny-llama-report-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // a page without storage follows the system
}
