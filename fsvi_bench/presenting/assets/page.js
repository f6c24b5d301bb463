"use strict";
(() => {
  const collator = new Intl.Collator("en", { numeric: true });

  // Finite numbers first, then infinity, then what is missing, in either direction.
  const group = (text) => (text === "" ? 2 : Number.isFinite(Number(text)) ? 0 : 1);
  const byNumber = (sign) => (a, b) => group(a) - group(b) || (group(a) === 0 ? sign * (Number(a) - Number(b)) : 0);
  const byText = (sign) => (a, b) => (a === "") - (b === "") || sign * collator.compare(a, b);

  const sort = (heading) => {
    const button = heading.querySelector("button");
    const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = direction === "ascending" ? 1 : -1;
    const compare = (button.dataset.kind === "number" ? byNumber : byText)(sign);
    const column = heading.cellIndex;
    for (const other of heading.parentNode.cells) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", direction);
    for (const body of heading.closest("table").tBodies) {
      const key = (row) => row.cells[column].dataset.v;
      body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
    }
  };

  for (const button of document.querySelectorAll("table.results th button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }
  const toggle = document.getElementById("intervals");
  const show = () => document.getElementById("results").classList.toggle("with-intervals", toggle.checked);
  if (toggle) {
    toggle.addEventListener("change", show);
    show();
  }

  // A closed section prints as its heading alone.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const details of opened) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
