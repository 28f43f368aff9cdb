// Numbers and names as text, tables as Markdown and CSV, and both out of the page.

const LONG_TEXT = 24; // letters
const NOTHING = "\u2013";
const formats = new Map();

function fixed(value, decimals) {
  if (!formats.has(decimals)) {
    formats.set(decimals, new Intl.NumberFormat("en-US", {minimumFractionDigits: decimals, maximumFractionDigits: decimals}));
  }
  return formats.get(decimals).format(value);
}

// As page_tables.py writes the first rows: so many significant digits, but never less than the whole number.
function numberText(value, column) {
  if (column.whole) return Math.abs(value) < 1e15 ? fixed(value, 0) : value.toExponential(column.digits - 1);
  if (value === 0) return "0";
  const digits = column.digits;
  const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
  if (exponent < -4 || exponent >= 15) return value.toExponential(digits - 1);
  return fixed(value, Math.max(0, digits - 1 - exponent));
}

function cellText(value, column) {
  if (value === null || value === "") return NOTHING;
  return typeof value === "number" ? numberText(value, column) : String(value);
}

// A long text with places to break a line after each slash, as cases' names have.
function breakable(text) {
  const fragment = document.createDocumentFragment();
  if (text.length < LONG_TEXT) {
    fragment.append(text);
    return fragment;
  }
  text.split("/").forEach((part, index, parts) => {
    fragment.append(index + 1 < parts.length ? part + "/" : part);
    if (index + 1 < parts.length) fragment.append(document.createElement("wbr"));
  });
  return fragment;
}

const headingOf = (column) => (column.unit ? `${column.title} (${column.unit})` : column.title);

function markdownOf(columns, rows) {
  const line = (cells) => `| ${cells.map((cell) => cell.replace(/\|/g, "\\|").replace(/\s+/g, " ")).join(" | ")} |`;
  const rule = `|${columns.map((column) => (column.numeric ? "---:" : "---")).join("|")}|`;
  const body = rows.map((row) => line(row.map((cell, index) => cellText(cell, columns[index]))));
  return [line(columns.map(headingOf)), rule, ...body].join("\n") + "\n";
}

// RFC 4180; numbers in full.
function csvOf(headings, rows) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  return [headings, ...rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

function save(name, content) {
  const link = document.createElement("a");
  const isAddress = content.startsWith("data:");
  link.href = isAddress ? content : URL.createObjectURL(new Blob([content], {type: "text/plain;charset=utf-8"}));
  link.download = name;
  link.click();
  if (!isAddress) setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A page that was opened as a file may be refused the clipboard: then the old way.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "outside";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser allows no copying");
  }
}

// Says what a button did beside it, and to a screen reader.
function say(place, text) {
  place.textContent = text;
  clearTimeout(place.timer);
  place.timer = setTimeout(() => { place.textContent = ""; }, 4000);
}
