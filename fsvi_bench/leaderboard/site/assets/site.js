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
  const family = document.getElementById("family");
  const kept = document.getElementById("kept");
  const narrow = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...document.querySelectorAll(".places > .scroll tbody.rivals tr")];
    for (const row of rows) {
      const text = row.cells[0].textContent.toLowerCase();
      const other = family.value && row.querySelector(".family").textContent !== family.value;
      row.hidden = other || !words.every((word) => text.includes(word));
    }
    const passed = new Set(rows.filter((row) => !row.hidden).map((row) => row.querySelector("a").href));
    for (const row of document.querySelectorAll(".places details tbody.rivals tr")) {
      row.hidden = !passed.has(row.querySelector("a").href);
    }
    const all = !words.length && !family.value;
    kept.textContent = all ? "" : `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  };
  filter?.addEventListener("input", narrow);
  family?.addEventListener("change", narrow);
})();
