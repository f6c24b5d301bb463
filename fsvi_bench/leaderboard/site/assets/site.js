"use strict";
(() => {
  // Layout of many rows is slow: the style sheet shows the first fifty until all are requested.
  for (const button of document.querySelectorAll("[data-all]")) {
    button.addEventListener("click", () => {
      const table = document.getElementById(button.dataset.all);
      const next = [...table.querySelectorAll("tbody tr")].find((row) => !row.hidden && !row.offsetParent);
      table.classList.remove("first");
      button.parentNode.hidden = true;
      next?.querySelector("a")?.focus();
    });
  }

  const filter = document.getElementById("filter");
  const kept = document.getElementById("kept");
  filter?.addEventListener("input", () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll("table.results tbody.rivals tr")];
    for (const row of rows) {
      const text = row.cells[0].textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    kept.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows` : "";
  });
})();
