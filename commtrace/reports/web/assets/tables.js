/* Tables that sort by a click on a column, and show only the rows that hold a text. */
"use strict";

function sortable(table) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [value(row.cells[column]), row]);
      rows.sort((a, b) => compared(a[0], b[0], down ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    });
  });
}

function value(cell) {
  const known = cell.dataset.v ?? cell.textContent;
  return known === "" ? null : known;
}

/* What is unknown comes last, whichever way the rest goes. */
function compared(a, b, way) {
  if (a === null || b === null) return (a === null) - (b === null);
  const difference = Number(a) - Number(b);
  return way * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
}

function filtered(table) {
  const label = document.createElement("label");
  label.className = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "only rows with …";
  label.append(input);
  table.parentElement.before(label);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  });
}

for (const table of document.querySelectorAll("#tables table")) {
  sortable(table);
  filtered(table);
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = getComputedStyle(document.body).backgroundColor !== "rgb(255, 255, 255)";
  root.dataset.theme = dark ? "light" : "dark";
  document.dispatchEvent(new Event("themechange"));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
  document.dispatchEvent(new Event("themechange")),
);
