"use strict";
// Which rows a chart shows and how they are drawn: the counterpart of shapes.py and charts.py.

const FIELDS = ["run", "tokens", "stream", "site", "layer", "head", "index", "step"];
const LOG_AXIS = { steps: "step", curve: "index", levels: "index" };
const MANY_ROWS = 3000; // more marks than this are drawn on a canvas, not as SVG
const NONE = "–"; // value of a variant's key that other rows of the metric have and this one lacks
const TITLES = { step: "step", stream: "stream" };

const titleOf = (field) => TITLES[field] || field.replace(/^v_/, "").replaceAll("_", " ");

// The different values of a field: numbers in order, then texts as first seen.
function distinct(rows, field) {
  const seen = [...new Set(rows.map((row) => row[field]))].filter((x) => x !== null && x !== undefined);
  const numbers = seen.filter((x) => typeof x !== "string").sort((a, b) => a - b);
  const texts = seen.filter((x) => typeof x === "string" && x !== NONE);
  return [...(seen.includes(NONE) ? [NONE] : []), ...numbers, ...texts];
}

// All fields in which two rows of a metric can differ.
function fieldsOf(rows) {
  const variants = new Set();
  for (const row of rows) for (const key in row) if (key.startsWith("v_")) variants.add(key);
  return [...FIELDS, ...[...variants].sort()];
}

// The fields of which one value must be chosen, with their values: neither an axis nor the colour shows them.
function picksOf(rows, kind, colour) {
  const many = new Map(fieldsOf(rows).map((field) => [field, distinct(rows, field)]));
  const drawn = new Set([...kind.axes, colour]);
  if (many.get("layer").length > 1) drawn.add("site");
  if (kind.dash) drawn.add("tokens");
  return [...many].filter(([field, values]) => values.length > 1 && !drawn.has(field));
}

// The value that is shown first, if possible one that every run has.
function defaultPick(field, all, rows) {
  const runs = distinct(rows, "run");
  const shared = runs.length < 2 ? [] : all.filter((value) =>
    new Set(rows.filter((row) => row[field] === value).map((row) => row.run)).size === runs.length);
  const values = shared.length ? shared : all;
  if (field === "step") return values[values.length - 1];
  if (field === "layer") return values[Math.floor(values.length / 2)];
  if (field === "tokens" && values.includes("all")) return "all";
  return values[0];
}

// Rows with the picked values, and the fields that specifications use.
function shownRows(rows, kind, colour, picked) {
  const kept = rows.filter((row) => Object.entries(picked).every(
    ([field, value]) => row[field] === value || row[field] === null || row[field] === undefined));
  const x = LOG_AXIS[kind.kind];
  const positive = x ? kept.map((row) => row[x]).filter((v) => v > 0) : [];
  const edge = positive.reduce((a, b) => Math.min(a, b), Infinity) / 2; // a log axis has no 0
  return kept.map((row) => ({
    ...row,
    series: colour === null ? row.site : row[colour],
    at: x ? (row[x] || (positive.length ? edge : 0)) : null,
    ...(kind.kind === "verdicts" ? verdictFields(row) : {}),
  }));
}

function verdictFields(row) {
  const effect = row.value === null ? "–" : String(Number(row.value.toPrecision(3)));
  const error = row.error === null ? "" : " ± " + Number(row.error.toPrecision(2));
  return { claim: (row.v_claim !== NONE && row.v_claim) || row.site.replace(/^claim\./, ""), effect: effect + error };
}

function heightOf(kind, rows, small) {
  const lines = { map: "layer", heads: "layer", head_steps: "head", verdicts: "claim", points: "series", pairs: "layer" }[kind.kind];
  if (!lines) return small ? 190 : 340;
  return Math.max(small ? 150 : 200, Math.min(620, 22 * distinct(rows, lines).length));
}

// Draw a chart in an element. With the same specification as before only the rows are replaced, without flicker.
async function draw(element, outline, kind, colour, rows, small = false) {
  const dark = document.documentElement.dataset.theme === "dark";
  const narrow = element.clientWidth < 620;
  const chosen = kind.colours.find((each) => each.field === colour) || kind.colours[0];
  const height = heightOf(kind, rows, small);
  const key = [chosen.spec, dark, narrow, height, rows.length > MANY_ROWS].join("|");
  if (element.drawn === key) {
    await element.view.data("rows", rows).runAsync();
    return;
  }
  const theme = outline.themes[dark ? "dark" : "light"];
  const legend = narrow || small ? { ...theme.legend, orient: "bottom", columns: narrow ? 3 : 5 } : theme.legend;
  const spec = {
    ...outline.specs[chosen.spec], width: "container", height, datasets: { rows },
    autosize: { type: "fit-x", contains: "padding" }, config: { ...theme, legend },
  };
  // ast: expressions are interpreted, so that the page does not need the right to evaluate code.
  const options = {
    renderer: rows.length > MANY_ROWS ? "canvas" : "svg", ast: true, logLevel: 1, actions: false,
    defaultStyle: false, tooltip: { disableDefaultStyle: true },
  };
  const result = await vegaEmbed(element, spec, options);
  if (element.view) element.view.finalize();
  element.view = result.view;
  element.drawn = key;
}
