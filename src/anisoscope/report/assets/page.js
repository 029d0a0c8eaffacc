"use strict";
// The explorer (choose a metric, a kind of chart, a colour), the gallery, the theme; the address contains the view.

const $ = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // texts become text nodes: no text of a run is read as HTML
  return made;
}

class Page {
  constructor(table) {
    this.table = table;
    this.state = readHash();
    this.settle();
    this.fillMetrics();
    this.bind();
  }

  get views() {
    return this.table.outline.views;
  }

  view() {
    return this.views.find((view) => view.metric === this.state.get("metric")) || this.views[0];
  }

  kind() {
    const kinds = this.view().kinds;
    return kinds.find((kind) => kind.kind === this.state.get("kind")) || kinds[0];
  }

  colour() {
    const fields = this.kind().colours.map((each) => each.field);
    return fields.includes(this.state.get("colour")) ? this.state.get("colour") : fields[0];
  }

  // If the address names no view, show the first one.
  settle() {
    if (this.views.length && !this.views.some((view) => view.metric === this.state.get("metric"))) {
      this.state.set("metric", this.views[0].metric);
    }
  }

  bind() {
    $("metric").onchange = (event) => this.choose({ metric: event.target.value });
    $("card-link").onclick = () => openCard(this.view().metric);
    $("colour").onchange = (event) => this.choose({ colour: event.target.value }, ["kind"]);
    window.onhashchange = () => {
      this.state = readHash();
      this.settle();
      this.show();
    };
  }

  // Change the view; choices that do not fit the new metric or kind get their default.
  choose(changes, keep = []) {
    const kept = new Map([...this.state].filter(([key]) => ["metric", "runs", "live.view"].includes(key) || keep.includes(key)));
    if (!changes.metric) for (const [key, value] of this.state) if (key.startsWith("pick.")) kept.set(key, value);
    this.state = kept;
    for (const [key, value] of Object.entries(changes)) this.state.set(key, value);
    writeHash(this.state);
    return this.show();
  }

  fillMetrics() {
    const families = new Map();
    for (const view of this.views) families.set(view.family, [...(families.get(view.family) || []), view.metric]);
    $("metric").replaceChildren(...[...families].map(([family, metrics]) =>
      element("optgroup", { label: family }, ...metrics.map((name) => element("option", { value: name }, name)))));
  }

  async show() {
    if (!this.views.length) return;
    const view = this.view(), kind = this.kind(), colour = this.colour();
    const requested = new Map([...this.state].filter(([key]) => key.startsWith("pick.")).map(([key, text]) => [key.slice(5), text]));
    const [picks, shown] = pickRows(this.table.rows(view.metric), kind, colour, requested);
    $("metric").value = view.metric;
    $("meaning").textContent = view.meaning;
    $("kinds").replaceChildren(...view.kinds.map((each) => this.tab(each, kind)));
    this.fillColours(kind, colour);
    this.fillPicks(picks);
    $("chart").setAttribute("aria-label", `${view.metric} ${kind.title}`);
    $("card-link").hidden = !cardOf(view.metric);
    const title = metricTitle(view.metric, shown, this.table.outline);
    await draw($("chart"), this.table.outline, kind, colour, shown, title);
    $("chart").dataset.shown = `${view.metric} ${kind.kind}`;
  }

  tab(each, current) {
    const button = element("button", { type: "button", "aria-pressed": each.kind === current.kind }, each.title);
    button.onclick = () => this.choose({ kind: each.kind });
    return button;
  }

  fillColours(kind, colour) {
    const named = kind.colours.filter((each) => each.field !== null);
    $("colour").parentElement.hidden = named.length < 2;
    $("colour").replaceChildren(...named.map((each) => element("option", { value: each.field }, each.title)));
    if (colour !== null) $("colour").value = colour;
  }

  // The controls are rebuilt only if the choices have changed, so that a slider in use stays.
  fillPicks(picks) {
    const signature = JSON.stringify(picks.map(([field, values]) => [field, values]));
    if ($("picks").dataset.signature !== signature) {
      $("picks").dataset.signature = signature;
      $("picks").replaceChildren(...picks.map(([field, values]) => this.picker(field, values)));
    }
    for (const [field, values, value] of picks) {
      const control = $("pick-" + field);
      control.value = String(values.indexOf(value));
      if (control.type === "range") control.nextElementSibling.textContent = this.label(field, value);
    }
  }

  picker(field, values) {
    const id = "pick-" + field;
    const slides = values.every((value) => typeof value === "number") && values.length > 3;
    const control = slides
      ? element("input", { id, type: "range", min: 0, max: values.length - 1, step: 1 })
      : element("select", { id }, ...values.map((value, position) => element("option", { value: position }, this.label(field, value))));
    control.oninput = () => this.choose({ ["pick." + field]: String(values[Number(control.value)]) }, ["kind", "colour"]);
    return element("label", {}, element("span", {}, titleOf(field)), control, ...(slides ? [element("output")] : []));
  }

  label(field, value) {
    return labelOf(field, value, this.table.outline.streams);
  }
}

function cardOf(metric) {
  return [...document.querySelectorAll("#cards details")].find((card) => card.dataset.metric === metric);
}

function openCard(metric) {
  const card = cardOf(metric);
  for (let part = card; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  card.scrollIntoView({ block: "center" });
}

function labelOf(field, value, streams) {
  if (field === "stream") return streams[value] || value;
  if (field === "layer" && value === -1) return "embed";
  if (value === NONE) return "none";
  return typeof value === "number" ? value.toLocaleString("en") : value;
}

function readHash() {
  return new Map(new URLSearchParams(location.hash.slice(1)));
}

function writeHash(state) {
  history.replaceState(null, "", "#" + new URLSearchParams([...state]));
}

// A picked value in words; "" if it says nothing. Of several runs, a reader must know that one is shown.
function pickText([field, values, value], outline) {
  if (value === NONE) return "";
  if (field === "stream") return labelOf(field, value, outline.streams);
  const text = `${titleOf(field)} ${labelOf(field, value, outline.streams)}`;
  return field === "run" ? `${text} (one of ${values.length} runs)` : text;
}

// A metric in its first kind of chart.
function galleryFigure(page, view) {
  const outline = page.table.outline;
  const link = element("a", { href: "#explore" }, view.metric);
  const chart = element("div", { class: "chart", role: "img", "aria-label": view.metric });
  const figure = element("figure", { "data-metric": view.metric }, element("figcaption", {}, link, element("span", {}, view.meaning)), chart);
  link.onclick = (event) => {
    event.preventDefault(); // the address contains the view, not a position on the page
    page.choose({ metric: view.metric });
    $("explore").scrollIntoView();
  };
  figure.draw = () => {
    const kind = view.kinds[0], colour = kind.colours[0].field;
    const [picks, shown] = pickRows(page.table.rows(view.metric), kind, colour);
    const title = metricTitle(view.metric, shown, outline);
    link.textContent = title;
    figure.querySelector("span").textContent = [view.meaning, ...picks.map((pick) => pickText(pick, outline))].filter(Boolean).join(" · ");
    return draw(chart, outline, kind, colour, shown, title, true);
  };
  return figure;
}

// Every metric of a report once.
function fillGallery(page) {
  const figures = page.views.filter((view) => view.kinds[0].kind !== "points").map((view) => galleryFigure(page, view));
  $("gallery").replaceChildren(...figures);
  drawWhenSeen(figures);
  return figures;
}

// Draw figures when they come near the screen.
function drawWhenSeen(figures) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      entry.target.draw();
    }
  }, { rootMargin: "200px" });
  figures.forEach((figure) => seen.observe(figure));
}

// Whether a figure of the gallery has been drawn: few rows as svg, many on a canvas.
const isDrawn = (figure) => figure.querySelector("svg, canvas") !== null;

// Light or dark: the system's setting until the reader chooses.
function bindTheme(redraw) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const set = (dark) => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = dark ? "Light" : "Dark";
  };
  set(system.matches);
  system.onchange = () => { set(system.matches); redraw(); };
  $("theme").onclick = () => { set(document.documentElement.dataset.theme !== "dark"); redraw(); };
}

function download(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

async function startReport() {
  let pictures = null, page = null, figures = [];
  const redraw = () => {
    if (pictures) pictures.redraw();
    if (page && page.shown) page.show();
    figures.filter(isDrawn).forEach((figure) => figure.draw());
  };
  bindTheme(redraw);
  try {
    const table = await unpack($("records").textContent);
    pictures = await fillFigures(table.outline);
    document.documentElement.dataset.hero = "yes";
    $("csv").onclick = () => download("records.csv", table.csv());
    page = new Page(table);
    await page.show();
    page.shown = true;
    // The gallery is folded: its charts are made when it is opened.
    $("all-charts").ontoggle = () => { if (!figures.length) figures = fillGallery(page); };
    bindPrint();
    document.documentElement.dataset.ready = "yes";
    pictures.drawAll(); // those below, too: a page that is printed has no time to draw
  } catch (error) {
    $("trouble").textContent = `The charts cannot be shown: ${error.message}`;
    $("trouble").hidden = false;
  }
}

// Paper is white and shows what is folded in a section, and what was measured. Dark charts are inverted: there is no
// time to draw them again.
function bindPrint() {
  const root = document.documentElement;
  let dark = false, opened = [];
  window.addEventListener("beforeprint", () => {
    dark = root.dataset.theme === "dark";
    root.dataset.theme = "light";
    root.classList.toggle("from-dark", dark);
    opened = [...document.querySelectorAll("section.question details, #details > details.facts")].filter((part) => !part.open);
    opened.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = dark ? "dark" : "light";
    root.classList.remove("from-dark");
    opened.forEach((part) => { part.open = false; });
  });
}
