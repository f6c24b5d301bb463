"use strict";
// Entries come as scripts, since a page opened from disk may not fetch files.
const fsviBenchEntries = new Map();
const fsviBenchEntry = (entry) => fsviBenchEntries.set(entry.name, entry);

(() => {
  const HEADLINES = { full: "kl", ffg: "kl_above_floor", singular: "predictive_kl_box" };
  const form = document.getElementById("choice");
  const [first, second, score] = ["a", "b", "score"].map((id) => document.getElementById(id));
  const said = document.getElementById("said");
  const result = document.getElementById("result");
  const ratios = JSON.parse(form.dataset.ratios);
  const level = Number(form.dataset.level);
  const [least, bound] = [Number(form.dataset.least), Number(form.dataset.bound)];
  const development = new Set(form.dataset.development.split(" "));
  const waiting = new Map();
  // As the page offers them, whatever a browser has kept of an earlier visit.
  const offered = [first, second].map((select) => [...select.options].find((option) => option.defaultSelected)?.value);

  const load = (name) => {
    if (!waiting.has(name)) {
      waiting.set(name, new Promise((resolve, reject) => {
        const script = document.createElement("script");
        script.addEventListener("load", () => resolve(fsviBenchEntries.get(name)));
        script.addEventListener("error", () => reject(new Error(`the scores of ${name} cannot be loaded`)));
        script.src = `data/${name}.js`;
        document.head.append(script);
      }));
    }
    return waiting.get(name);
  };

  const numbers = (values) => (values.includes(null) ? null : values.map(Number));
  // As fsvi_bench/leaderboard/comparing.py has it: scores that are `least` at least, ratios within `bound`.
  const logRatio = (a, b) => (a === b ? 0 : Math.min(bound, Math.max(-bound, a - b)));
  const difference = (name, ofA, ofB) => {
    const [a, b] = [numbers(ofA), numbers(ofB)];
    const found = { name, a: a && fsviStatistics.mean(a), b: b && fsviStatistics.mean(b), ratio: null, interval: null, p: null, adjusted: null, closer: "" };
    if (!a || !b) return found;
    const [logA, logB] = [a, b].map((values) => values.map((value) => Math.log10(Math.max(value, least))));
    const logs = logA.map((value, place) => logRatio(value, logB[place]));
    const bySigns = Math.min(1, 2 ** (1 - logs.filter((value) => value !== 0).length));
    found.p = Math.max(fsviStatistics.pairedTest(logs, ratios[name]), bySigns);
    found.ratio = fsviStatistics.mean(logs);
    const ends = fsviStatistics.interval(logs, ratios[name]);
    found.interval = ends && [Math.max(ends[0], -bound), Math.min(ends[1], bound)];
    return found;
  };
  const compare = (a, b, by) => {
    const rows = Object.keys(ratios).map((name) => difference(name, a.datasets[name][by], b.datasets[name][by]));
    const tested = rows.filter((row) => row.p !== null);
    fsviStatistics.holm(tested.map((row) => row.p)).forEach((value, place) => {
      const row = tested[place];
      row.adjusted = value;
      if (value <= level && row.ratio !== 0) row.closer = row.ratio < 0 ? "first" : "second";
    });
    return rows;
  };

  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const raised = (power) => [...String(power)].map((c) => (c === "-" ? "⁻" : SUPERSCRIPTS[Number(c)])).join("");
  const digits = (value) => {
    if (value === null || Number.isNaN(value)) return "–";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (value === 0) return "0";
    const [mantissa, power] = value.toExponential(2).split("e");
    const size = Math.abs(value);
    if (size < 1e-3 || size >= 1e6) return `${Number(mantissa).toFixed(1)}·10${raised(Number(power))}`.replace("-", "−");
    const places = Math.max(0, 2 - Number(power));
    return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places }).replace("-", "−");
  };
  const signed = (value) => (value > 0 ? `+${digits(value)}` : digits(value));
  const pValue = (value) => (value === null ? "–" : value < 0.001 ? "< 0.001" : String(Number(value.toPrecision(2))));

  const cell = (row, text, full) => {
    const made = row.insertCell();
    made.className = "n";
    made.textContent = text;
    if (full !== undefined && full !== null) made.dataset.v = made.title = String(full);
  };
  const draw = (rows, a, b) => {
    const body = result.querySelector("tbody");
    body.replaceChildren();
    document.getElementById("name-a").textContent = a.title;
    document.getElementById("name-b").textContent = b.title;
    for (const each of rows) {
      const row = body.insertRow();
      const heading = document.createElement("th");
      heading.scope = "row";
      const link = document.createElement("a");
      link.href = `datasets/${each.name}.html`;
      link.textContent = each.name;
      heading.append(link);
      if (development.has(each.name)) heading.append(" ", Object.assign(document.createElement("small"), { className: "dev", textContent: "dev" }));
      row.append(heading);
      cell(row, each.a === null ? "missing" : digits(each.a), each.a);
      cell(row, each.b === null ? "missing" : digits(each.b), each.b);
      cell(row, signed(each.ratio), each.ratio);
      cell(row, each.interval ? each.interval.map(signed).join(" to ") : "–", each.interval);
      cell(row, pValue(each.p), each.p);
      cell(row, pValue(each.adjusted), each.adjusted);
      row.insertCell().textContent = each.closer;
    }
  };

  const fromAddress = () => {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const select of [first, second, score]) {
      const value = wanted.get(select.id);
      // Only what the list offers: an address must not lead to other files.
      if (value !== null && [...select.options].some((option) => option.value === value)) select.value = value;
    }
    // An entry's own link names the first alone, which may be the one that stands second.
    if (first.value === second.value) second.value = offered.find((name) => name !== first.value);
  };
  const words = (rows) => {
    const count = (closer) => rows.filter((row) => row.p !== null && row.closer === closer).length;
    const lacking = rows.filter((row) => row.p === null).map((row) => row.name);
    const told = `First closer on ${count("first")}, second on ${count("second")}, not told apart on ${count("")} of ${rows.length} data sets`;
    return lacking.length ? `${told}; not compared, since one of them lacks a cell: ${lacking.join(", ")}.` : `${told}.`;
  };
  const show = async () => {
    const [a, b, chosen] = [first.value, second.value, score.value];
    try {
      const [ofA, ofB] = await Promise.all([load(a), load(b)]);
      if (a !== first.value || b !== second.value || chosen !== score.value) return;
      const by = chosen || (ofA.track === ofB.track ? HEADLINES[ofA.track] : "predictive_kl_box");
      const rows = compare(ofA, ofB, by);
      draw(rows, ofA, ofB);
      const across = !chosen && ofA.track !== ofB.track;
      const why = across ? `, since they are of different tracks (${ofA.track}, ${ofB.track}), whose headlines differ` : "";
      const meaning = [...score.options].find((option) => option.value === by).textContent;
      said.textContent = a === b
        ? "An entry compared with itself: choose another."
        : `By ${meaning}${why}. ${words(rows)}`;
      result.hidden = false;
    } catch (error) {
      said.textContent = `${error.message}.`;
      result.hidden = true;
    }
  };
  const chosen = () => {
    const words = new URLSearchParams({ a: first.value, b: second.value, ...(score.value && { score: score.value }) });
    history.replaceState(null, "", `#${words}`);
    show();
  };

  if (first.options.length > 1) {
    for (const select of [first, second, score]) select.addEventListener("change", chosen);
    addEventListener("hashchange", () => { fromAddress(); show(); });
    fromAddress();
    show();
  }
})();
