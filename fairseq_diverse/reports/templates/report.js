"use strict";
// A click on a header sorts by its column: upwards, downwards, as written. Cells without a value come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0], headers = [...table.tHead.rows[0].cells], written = [...body.rows];
  const compare = (a, b) =>
    "value" in a.dataset
      ? a.dataset.value - b.dataset.value
      : a.textContent.localeCompare(b.textContent, "en", { numeric: true });
  headers.forEach((header, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = header.textContent;
    header.replaceChildren(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "" }[header.getAttribute("aria-sort")] ?? "ascending";
      headers.forEach((other) => other.removeAttribute("aria-sort"));
      let rows = written;
      if (next) {
        header.setAttribute("aria-sort", next);
        const numeric = written.some((row) => "value" in row.cells[column].dataset);
        const known = (row) => (numeric ? "value" in row.cells[column].dataset : row.cells[column].textContent !== "");
        const sign = next === "ascending" ? 1 : -1;
        rows = written.filter(known).sort((a, b) => sign * compare(a.cells[column], b.cells[column]));
        rows.push(...written.filter((row) => !known(row)));
      }
      body.append(...rows);
    });
  });
}
for (const select of document.querySelectorAll(".marks select")) {
  select.addEventListener("change", () => {
    document.body.dataset.marks = select.value;
    document.querySelectorAll(".marks select").forEach((other) => (other.value = select.value));
  });
}
