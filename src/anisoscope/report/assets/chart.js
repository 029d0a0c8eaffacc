"use strict";
// Which rows a chart shows and how they are drawn: the counterpart of shapes.py and charts.py.

const FIELDS = ["run", "tokens", "stream", "site", "layer", "head", "index", "step"];
const LOG_AXIS = { steps: "step", curve: "index", levels: "index" };
const MANY_ROWS = 3000; // more marks than this are drawn on a canvas, not as SVG
const NONE = "–"; // value of a variant's key that other rows of the metric have and this one lacks
const PICK_ORDER = ["stream", "run", "tokens", "step", "layer", "head", "index", "site"]; // after the variant's keys
const PREFERRED = { tokens: "all", stream: "resid", index: 32 };
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

const fieldValue = (row, field) => (row[field] === null || row[field] === undefined ? NONE : row[field]);

// Whether a row has a mark in a chart of this kind and colour.
function drawable(row, kind, colour) {
  return kind.needs.every((field) => fieldValue(row, field) !== NONE) && (!kind.positive || row.value > 0) && (!kind.needs.includes("x") || row.x > 0) &&
    (colour === null || (row[colour] !== null && row[colour] !== undefined));
}

// What must be picked, because neither an axis nor the colour shows it: a field offers only values that occur together
// with what is picked before it, so that no choice leads to a chart without marks. The counterpart of picks.py.
// `requested` has texts by field, from the address. Returns [field, values, value] of each pick, and the rows to show.
function pickRows(rows, kind, colour, requested = new Map()) {
  let shown = rows.filter((row) => drawable(row, kind, colour));
  const drawn = new Set([...kind.axes, colour]);
  if (kind.dash) drawn.add("tokens");
  if (drawn.has("layer") || drawn.has("head")) drawn.add("site"); // within a stream, layer and head determine it
  const variants = fieldsOf(shown).filter((field) => field.startsWith("v_"));
  const picks = [];
  for (const field of [...variants, ...PICK_ORDER].filter((each) => !drawn.has(each))) {
    const values = distinct(shown.map((row) => ({ [field]: fieldValue(row, field) })), field);
    if (values.length < 2) continue;
    const asked = values.find((value) => String(value) === requested.get(field));
    const value = asked === undefined ? defaultPick(field, values, shown, kind.headline) : asked;
    picks.push([field, values, value]);
    shown = shown.filter((row) => fieldValue(row, field) === value);
  }
  return [picks, shown];
}

// The value that is shown first: see picks.py.
function defaultPick(field, values, rows, headline) {
  const byValue = new Map(values.map((value) => [value, []]));
  for (const row of rows) byValue.get(fieldValue(row, field)).push(row);
  const runs = (value) => new Set(byValue.get(value).map((row) => row.run)).size;
  const most = Math.max(...values.map(runs));
  let best = values.filter((value) => runs(value) === most);
  if (field === "step") return best[best.length - 1];
  const narrow = (test) => { const some = best.filter(test); if (some.length) best = some; };
  if (["layer", "head", "index"].includes(field)) narrow((value) => value !== NONE);
  narrow((value) => byValue.get(value).some((row) => row.value));
  const preferred = field in headline ? headline[field] : PREFERRED[field];
  if (best.includes(preferred)) return preferred;
  if (field === "index") return best[best.length - 1];
  if (field === "run" || field === "head") return best[0];
  const size = field === "layer"
    ? (value) => byValue.get(value).reduce((top, row) => Math.max(top, Math.abs(row.value || 0)), 0)
    : (value) => byValue.get(value).length;
  return best.reduce((first, value) => (size(value) > size(first) ? value : first), best[0]);
}

// Rows with the fields that specifications use.
function withSeries(rows, kind, colour, streams) {
  const x = LOG_AXIS[kind.kind];
  const positive = x ? rows.map((row) => row[x]).filter((v) => v > 0) : [];
  const edge = positive.reduce((a, b) => Math.min(a, b), Infinity) / 2; // a log axis has no 0
  return rows.map((row) => ({
    ...row,
    series: colour === null ? row.site : colour === "stream" ? streams[row.stream] || row.stream : row[colour],
    at: x ? (row[x] || (positive.length ? edge : 0)) : null,
    ...(kind.kind === "verdicts" ? verdictFields(row) : {}),
  }));
}

// The title of the axis of values: the metric, and what it describes if that is not the residual stream.
function metricTitle(metric, rows, outline) {
  const streams = distinct(rows, "stream");
  if (streams.length !== 1 || outline.unnamed.includes(streams[0])) return metric;
  if (streams[0] === "grad.resid" && metric.includes("gradient")) return metric;
  return `${metric} of ${outline.streams[streams[0]] || streams[0]}`;
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

// A specification with the title of its axis of values, which metrics that share it do not share.
function titled(part, title) {
  if (Array.isArray(part)) return part.map((each) => titled(each, title));
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, value]) =>
    [key, key === "title" && value === "{value}" ? title : titled(value, title)]));
}

// Legends below a chart: one per row, and as many columns as the longest label allows.
function legendBelow(theme, rows, width) {
  const longest = distinct(rows, "series").reduce((most, label) => Math.max(most, String(label).length), 0);
  const columns = Math.max(1, Math.floor((width - 60) / (7 * longest + 30)));
  const layout = { bottom: { anchor: "start", direction: "vertical", margin: 4 } };
  return { ...theme.legend, orient: "bottom", columns, labelLimit: width - 60, titleLimit: width - 40, layout };
}

// Draw rows in an element. With the same specification as before only the rows are replaced, without flicker.
async function draw(element, outline, kind, colour, shown, title, small = false) {
  const rows = withSeries(shown, kind, colour, outline.streams);
  const dark = document.documentElement.dataset.theme === "dark";
  const width = element.clientWidth, below = small || width < 620;
  const chosen = kind.colours.find((each) => each.field === colour) || kind.colours[0];
  const height = heightOf(kind, rows, small);
  const theme = outline.themes[dark ? "dark" : "light"];
  const legend = below ? legendBelow(theme, rows, width) : theme.legend;
  const key = [chosen.spec, title, dark, height, rows.length > MANY_ROWS, JSON.stringify(legend)].join("|");
  if (element.drawn === key) {
    await element.view.data("rows", rows).runAsync();
    return;
  }
  const spec = {
    ...titled(outline.specs[chosen.spec], title), width: "container", height, datasets: { rows },
    autosize: { type: "fit-x", contains: "padding" }, config: { ...theme, legend },
  };
  // ast: expressions are interpreted, so that the page does not need the right to evaluate code.
  const options = {
    renderer: rows.length > MANY_ROWS ? "canvas" : "svg", ast: true, logLevel: 1, actions: false,
    defaultStyle: false, tooltip: { disableDefaultStyle: true },
  };
  const label = element.getAttribute("aria-label");
  const result = await vegaEmbed(element, spec, options);
  element.setAttribute("aria-label", label); // Vega has replaced it
  if (element.view) element.view.finalize();
  element.view = result.view;
  element.drawn = key;
}
