"use strict";
// What the build computed of an entry beside all others; it comes as a script, since a page from disk may not fetch files.
const fsviBenchFound = new Map();
const fsviBenchCompared = ({ name, beside }) => fsviBenchFound.set(name, beside);

(() => {
  const [first, second] = ["a", "b"].map((id) => document.getElementById(id));
  const said = document.getElementById("said");
  const compared = document.getElementById("compared");
  const waiting = new Map();

  const load = (name) => {
    if (!waiting.has(name)) {
      waiting.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.addEventListener("load", () => resolve(fsviBenchFound.get(name)));
        script.addEventListener("error", () => reject(new Error(`what was computed of ${name} cannot be loaded`)));
        script.src = `data/${name}.js`;
        document.head.append(script);
      }));
    }
    return waiting.get(name);
  };

  const draw = ({ rows }) => {
    for (const select of [first, second]) {
      document.getElementById(`name-${select.id}`).textContent = select.selectedOptions[0].textContent;
    }
    const body = compared.querySelector("tbody");
    body.replaceChildren();
    for (const [dataset, ...numbers] of rows) {
      const row = body.insertRow();
      const heading = Object.assign(document.createElement("th"), { scope: "row" });
      heading.append(Object.assign(document.createElement("a"), { href: `datasets/${dataset}.html`, textContent: dataset }));
      row.append(heading);
      for (const number of numbers) Object.assign(row.insertCell(), { className: "n", textContent: number });
    }
  };

  const show = async () => {
    const [a, b] = [first.value, second.value];
    compared.hidden = true;
    if (a === b) {
      said.textContent = "An entry beside itself: choose another.";
      return;
    }
    try {
      const found = (await load(a))[b];
      if (a !== first.value || b !== second.value) return;
      draw(found);
      said.textContent = `By ${found.score}. Over data sets: p = ${found.p} (Wilcoxon).`;
      compared.hidden = false;
    } catch (error) {
      said.textContent = `${error.message}.`;
    }
  };

  const fromAddress = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const select of [first, second]) {
      // Only what the list offers: an address must not lead to other files.
      const option = [...select.options].find((each) => each.value === wanted.get(select.id));
      if (option) option.selected = true;
    }
    // An entry's own link names the first alone, which may be the one that stands second.
    if (first.value === second.value) second.selectedIndex = second.selectedIndex ? 0 : 1;
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
