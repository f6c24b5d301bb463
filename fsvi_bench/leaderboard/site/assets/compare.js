"use strict";
// The comparisons of an entry are loaded as a script, because a page opened from disk may not fetch files.
const fsviBenchFound = new Map();
const fsviBenchCompared = (found) => fsviBenchFound.set(found.name, found);

(() => {
  const [first, second] = ["a", "b"].map((id) => document.getElementById(id));
  const said = document.getElementById("said");
  const compared = document.getElementById("compared");
  const headings = compared?.querySelectorAll("thead button");
  const rows = [...(compared?.querySelectorAll("tbody tr") ?? [])]; // in their original order
  const waiting = new Map();

  const load = (name) => {
    if (!waiting.has(name)) {
      waiting.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.addEventListener("load", () => resolve(fsviBenchFound.get(name)));
        script.addEventListener("error", () => reject(new Error(`The data of ${name} cannot be loaded`)));
        script.src = `data/${name}.js`;
        document.head.append(script);
      }));
    }
    return waiting.get(name);
  };

  const signed = (hundredths) => `${hundredths > 0 ? "+" : hundredths < 0 ? "−" : ""}${Math.abs(hundredths / 100).toFixed(2)}`;

  // Only the earlier entry has the comparison: for the later one, signs are reversed.
  const pair = (a, b) => {
    const isEarlier = Object.hasOwn(a.comparisons, b.name); // not `in`: an entry may be called "constructor"
    const [p, ...numbers] = isEarlier ? a.comparisons[b.name] : b.comparisons[a.name];
    const rows = Array.from({ length: numbers.length / 3 }, (_, row) => numbers.slice(3 * row, 3 * row + 3));
    return [p, isEarlier ? rows : rows.map(([ratio, low, high]) => [-ratio, -high, -low])];
  };

  const write = (cell, text, key) => {
    cell.textContent = text;
    cell.dataset.v = key;
  };

  const draw = (a, b) => {
    const [p, ratios] = pair(a, b);
    const kind = ["posterior", "joint", "networks"].find((key) => a[key] && b[key]);
    [first, second].forEach((select, column) => { headings[column + 1].textContent = select.selectedOptions[0].textContent; });
    ratios.forEach(([ratio, low, high], place) => {
      const [, ...cells] = rows[place].cells;
      [a, b].forEach((each, column) => write(cells[column], ...each[kind].medians[place]));
      write(cells[2], signed(ratio), ratio);
      write(cells[3], `${signed(low)} to ${signed(high)}`, low);
    });
    const verdict = p === "–" ? "" : ` Over data sets: p = ${p} (Wilcoxon), for this pair alone.`;
    said.textContent = `Score: ${a[kind].score}.${verdict}`;
  };

  const show = async () => {
    const [a, b] = [first.value, second.value];
    compared.hidden = true;
    if (a === b) {
      said.textContent = "Choose two different entries.";
      return;
    }
    try {
      const found = await Promise.all([a, b].map(load));
      if (a !== first.value || b !== second.value) return;
      draw(...found);
      compared.hidden = false;
    } catch (error) {
      said.textContent = `${error.message}.`;
    }
  };

  const fromAddress = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const select of [first, second]) {
      // Only entries of the list: an address must not lead to other files.
      const option = [...select.options].find((each) => each.value === wanted.get(select.id));
      if (option) option.selected = true;
    }
    // The link on an entry's page names only the first entry, which may be the default second one.
    const defaults = [first, second].map((select) => select.querySelector("[selected]").value);
    if (first.value === second.value) second.value = defaults.find((name) => name !== first.value);
    show();
  };

  if (!first) return;
  for (const select of [first, second]) {
    select.addEventListener("change", () => {
      history.replaceState(null, "", `#${new URLSearchParams({ a: first.value, b: second.value })}`);
      show();
    });
  }
  addEventListener("hashchange", fromAddress);
  fromAddress();
})();
