"use strict";
(() => {
  const announced = document.getElementById("announced");
  const collator = new Intl.Collator("en", { numeric: true });

  // Finite numbers first, then infinity, then what is missing, in either direction.
  const group = (text) => (text === "" ? 2 : Number.isFinite(Number(text)) ? 0 : 1);
  const byNumber = (sign) => (a, b) => a.group - b.group || (a.group === 0 ? sign * (a.number - b.number) : 0);
  const byText = (sign) => (a, b) => (a.text === "") - (b.text === "") || sign * collator.compare(a.text, b.text);

  const sort = (heading) => {
    const kind = heading.querySelector("button").dataset.kind;
    const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = direction === "ascending" ? 1 : -1;
    const column = heading.cellIndex;
    for (const other of heading.parentNode.cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", direction);
    for (const body of heading.closest("table").tBodies) {
      const keyed = [...body.rows].map((row) => {
        const text = row.cells[column].dataset.v;
        return { row, text, group: group(text), number: Number(text) };
      });
      keyed.sort((kind === "number" ? byNumber : byText)(sign));
      body.replaceChildren(...keyed.map((each) => each.row));
    }
    refresh(heading.closest("table"));
    announced.textContent = `Sorted by ${heading.querySelector("button").textContent}, ${direction}.`;
  };

  // What a table costs is the rows that are laid out: the first fifty that pass the filter, until more are asked for.
  const AT_FIRST = 50;
  const limits = new Map();
  const filter = document.getElementById("filter");
  const rerunOnly = document.getElementById("rerun-only");
  const shown = document.getElementById("shown");
  const passing = (table) => {
    if (!table.closest(".panel")) return () => true;
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rerun = rerunOnly.checked;
    return (row) => (!rerun || "rerun" in row.dataset) && words.every((word) => row.dataset.text.includes(word));
  };
  const refresh = (table) => {
    const passes = passing(table);
    const limit = limits.get(table) ?? AT_FIRST;
    const rows = table.tBodies[0].rows;
    let kept = 0;
    for (const row of rows) {
      const passed = passes(row);
      if (row.hidden === passed) row.hidden = !passed;
      kept += passed;
      row.classList.toggle("later", passed && kept > limit);
    }
    const more = table.parentNode.parentNode.querySelector(`[data-more="${table.id}"]`);
    if (more) {
      more.hidden = kept <= limit;
      more.querySelector("span").textContent = `The first ${limit} of ${kept} rows are shown.`;
    }
    return [kept, rows.length];
  };
  for (const more of document.querySelectorAll("[data-more]")) {
    more.querySelector("button").addEventListener("click", () => {
      const table = document.getElementById(more.dataset.more);
      const next = [...table.tBodies[0].rows].find((row) => row.classList.contains("later"));
      limits.set(table, Infinity);
      refresh(table);
      next?.querySelector("a")?.focus();
    });
  }
  for (const button of document.querySelectorAll("table.board thead button")) {
    button.addEventListener("click", () => sort(button.closest("th")));
  }

  const tabs = [...document.querySelectorAll("[role=tab]")];
  const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

  // The table that shows; the others follow when they are chosen.
  const apply = () => {
    const panel = document.querySelector(".panel.current");
    const table = panel.querySelector("table");
    const [kept, rows] = table ? refresh(table) : [0, 0];
    const nothing = panel.querySelector(".nothing");
    if (nothing) nothing.hidden = kept > 0;
    shown.textContent = `${kept} of ${rows} ${rows === 1 ? "row" : "rows"}`;
  };

  const choose = (tab, { focus = false, remember = false } = {}) => {
    for (const other of tabs) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      panelOf(other).classList.toggle("current", chosen);
    }
    if (focus) tab.focus();
    if (remember) history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
    apply();
  };
  const fromAddress = () => {
    const tab = tabs.find((each) => `#${each.getAttribute("aria-controls")}` === location.hash);
    if (tab) choose(tab);
  };

  if (tabs.length) {
    tabs.forEach((tab, place) => {
      tab.addEventListener("click", () => choose(tab, { remember: true }));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        choose(tabs[(to + tabs.length) % tabs.length], { focus: true, remember: true });
      });
    });
    filter.addEventListener("input", apply);
    rerunOnly.addEventListener("change", apply);
    const toggle = document.getElementById("intervals");
    const show = () => document.getElementById("tables").classList.toggle("with-intervals", toggle.checked);
    toggle.addEventListener("change", show);
    addEventListener("hashchange", fromAddress);
    show();
    fromAddress();
    apply();
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
