// Tables: sorted by a click or a key on a heading, filtered by words, the first rows or all, copied as Markdown or CSV.

const FIRST_ROWS = 50;
const VERY_LONG_TEXT = 60; // letters
const ORDERS = {none: "ascending", ascending: "descending", descending: "none"};
const byName = new Intl.Collator("en", {numeric: true});

// Cells without a value come last, whatever the direction.
function compareCells(a, b, direction) {
  const isMissing = [a, b].map((value) => value === null || value === "");
  if (isMissing[0] || isMissing[1]) return isMissing[0] - isMissing[1];
  const difference = typeof a === "number" && typeof b === "number" ? a - b : byName.compare(String(a), String(b));
  return direction === "descending" ? -difference : difference;
}

class TableView {
  // card: the element that holds the table and its buttons; table: {id, columns, rows}
  constructor(card, table) {
    this.card = card;
    this.table = table;
    this.column = 0;
    this.order = "none";
    this.words = [];
    this.showsAll = false;
    this.body = card.querySelector("tbody");
    this.heads = [...card.querySelectorAll("thead th")];
    this.count = card.querySelector(".count");
    this.said = card.querySelector(".said");
    this.more = card.querySelector(".more");
    this.connect();
  }

  connect() {
    this.heads.forEach((head, index) => head.querySelector("button").addEventListener("click", () => this.sortBy(index)));
    this.card.querySelector("input[type=search]")?.addEventListener("input", (event) => this.filter(event.target.value));
    this.more.addEventListener("click", () => {
      this.showsAll = !this.showsAll;
      this.render();
    });
    const actions = {
      markdown: () => this.copied(markdownOf(this.table.columns, this.rows()), "Markdown"),
      csv: () => this.copied(this.csv(), "CSV"),
      save: () => save(`${this.table.id}.csv`, this.csv()),
    };
    for (const button of this.card.querySelectorAll("button[data-action]")) {
      button.addEventListener("click", actions[button.dataset.action]);
    }
  }

  csv() {
    return csvOf(this.table.columns.map(headingOf), this.rows());
  }

  copied(text, format) {
    const count = this.rows().length;
    copy(text).then(
      () => say(this.said, `${fixed(count, 0)} row${count === 1 ? "" : "s"} copied as ${format}`),
      (error) => say(this.said, `not copied: ${error.message}`),
    );
  }

  sortBy(index) {
    this.order = index === this.column ? ORDERS[this.order] : "ascending";
    this.column = index;
    this.heads.forEach((head, at) => head.setAttribute("aria-sort", at === index ? this.order : "none"));
    this.render();
  }

  filter(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.render();
  }

  setRows(rows) {
    this.table = {...this.table, rows};
    this.render();
  }

  // Those that the filter lets through, in order.
  rows() {
    const contains = (row) => {
      const text = row.join("\n").toLowerCase();
      return this.words.every((word) => text.includes(word));
    };
    const rows = this.words.length ? this.table.rows.filter(contains) : [...this.table.rows];
    if (this.order !== "none") rows.sort((a, b) => compareCells(a[this.column], b[this.column], this.order));
    return rows;
  }

  render() {
    const rows = this.rows();
    const shown = this.showsAll ? rows : rows.slice(0, FIRST_ROWS);
    this.body.replaceChildren(...shown.map((row) => this.rowOf(row)));
    const total = this.table.rows.length;
    const ofAll = rows.length === total ? "" : ` of ${fixed(total, 0)}`;
    const first = shown.length < rows.length ? `first ${shown.length} of ` : "";
    this.count.textContent = `${first}${fixed(rows.length, 0)}${ofAll} row${total === 1 ? "" : "s"}`;
    this.more.hidden = rows.length <= FIRST_ROWS;
    this.more.textContent = this.showsAll ? `Show the first ${FIRST_ROWS}` : `Show all ${fixed(rows.length, 0)} rows`;
  }

  // A very long text is cut after some lines until the pointer is on its row.
  contentOf(text) {
    if (text.length < VERY_LONG_TEXT) return breakable(text);
    const block = document.createElement("div");
    block.className = "clamp";
    block.append(breakable(text));
    return block;
  }

  rowOf(row) {
    const line = document.createElement("tr");
    row.forEach((value, index) => {
      const column = this.table.columns[index];
      const cell = document.createElement("td");
      cell.append(this.contentOf(cellText(value, column)));
      if (column.numeric) cell.className = "number";
      if (column.share && typeof value === "number") {
        cell.classList.add("share");
        cell.style.setProperty("--share", `${Math.min(100, Math.max(0, value))}%`);
      }
      line.append(cell);
    });
    return line;
  }
}
