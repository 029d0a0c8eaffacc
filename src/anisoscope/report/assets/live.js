"use strict";
// The live page: a table of runs, their charts, and the rows that arrive while a run grows.

const LIST_EVERY = 10000; // milliseconds between two updates of the list

class Live {
  constructor() {
    const state = readHash();
    this.chosen = JSON.parse(state.get("runs") || "[]"); // ids of runs, in the address too
    this.page = null;
    this.turn = 0; // results of an earlier choice must not replace those of a later one
    this.table = new RunTable((ids) => this.choose(ids).catch(trouble), () => this.keep());
    this.loop = new LoopCharts(() => this.keep());
    this.sections = new LiveSections(this.loop);
    this.explored = new VegaCursor($("chart"), () => this.page && this.page.kind().kind, (step) => this.loop.point(step));
    this.pins = new Pins(this);
    this.restore(state);
    bindTheme(() => this.redraw());
    window.addEventListener("hashchange", () => this.follow(JSON.parse(readHash().get("runs") || "[]")));
  }

  // What the address keeps besides the explorer: axes, smoothing, zoom, filter, order, column, pinned charts.
  restore(state) {
    const view = JSON.parse(state.get("live.view") || "{}");
    for (const key of ["smooth", "logX", "logY", "zoom"]) if (key in view) this.loop.view[key] = view[key];
    if (view.sort) this.table.sort = view.sort;
    if (view.column) this.table.column = view.column;
    if (view.filter) $("filter").value = view.filter;
    this.pins.pinned = view.pins || [];
  }

  keep() {
    const state = readHash();
    const { sort, column } = this.table;
    state.set("live.view", JSON.stringify({ ...this.loop.view, sort, column, filter: $("filter").value, pins: this.pins.pinned }));
    writeHash(state);
    if (this.page) this.page.state.set("live.view", state.get("live.view"));
  }

  // Update the list; returns the runs, the last changed first.
  async list() {
    const runs = await (await request("/api/runs")).json();
    this.runs = runs;
    this.table.show(runs, this.chosen);
    this.showStopped();
    if (!runs.length) this.setStatus("no runs in this folder yet", false);
    else if (this.page) this.count();
    return runs;
  }

  // Choose the runs in the address that exist, otherwise the run that changed last.
  async start() {
    const ids = (await this.list()).map((run) => run.id);
    const existing = this.chosen.filter((id) => ids.includes(id));
    if (ids.length) await this.choose(existing.length ? existing : [ids[0]]);
    setInterval(() => this.list().catch(trouble), LIST_EVERY);
  }

  follow(ids) {
    if (JSON.stringify(ids) !== JSON.stringify(this.chosen) && ids.length) this.choose(ids);
  }

  // Read the chosen runs, show them, and listen for new rows.
  async choose(ids) {
    const turn = ++this.turn;
    this.chosen = ids;
    this.table.show(this.runs, ids);
    this.showStopped();
    if (this.stream) this.stream.close();
    $("main").hidden = !ids.length;
    $("report").hidden = !ids.length;
    if (!ids.length) return this.setStatus("choose a run", false);
    const query = new URLSearchParams(ids.map((id) => ["run", id]));
    $("report").setAttribute("href", "/report?" + query);
    const answer = await (await request("/api/records?" + query)).json();
    const table = await unpack(answer.packed);
    if (turn !== this.turn) return;
    this.show(table);
    answer.positions.forEach((position) => query.append("position", position));
    this.listen(query, turn);
  }

  show(table) {
    const state = readHash();
    state.set("runs", JSON.stringify(this.chosen));
    writeHash(state);
    this.page = new Page(table);
    $("main").hidden = !this.page.views.length;
    this.page.show();
    this.loop.show(table, this.labels());
    this.sections.show(this.page);
    this.pins.show();
    this.count();
  }

  // The labels of the chosen runs, in the order of their colours.
  labels() {
    return this.page.table.head.lists.run;
  }

  listen(query, turn) {
    this.stream = new EventSource("/api/events?" + query);
    this.stream.onopen = () => $("pulse").classList.add("live");
    this.stream.onmessage = (event) => this.arrived(JSON.parse(event.data), turn);
    // Positions in the address are out of date after an interruption: read the runs whole again.
    this.stream.onerror = () => {
      this.stream.close();
      this.setStatus("connection lost, reconnecting", false);
      setTimeout(() => { if (turn === this.turn) this.choose(this.chosen).catch(trouble); }, 2000);
    };
  }

  async arrived(event, turn) {
    if (turn !== this.turn) return;
    if (event.again) return this.choose(this.chosen);
    const table = this.page.table, metrics = new Set(event.rows.map((row) => row.metric));
    const before = signatureOf(table, metrics);
    table.append(event.rows);
    // Other charts may fit now (a second step, a new metric): ask the server which.
    if (signatureOf(table, metrics) !== before) return this.choose(this.chosen);
    if (metrics.has(this.page.view().metric)) await this.page.show();
    this.loop.show(table, this.labels());
    this.sections.draw(metrics);
    this.pins.draw(metrics);
    this.count();
  }

  redraw() {
    if (!this.page) return;
    this.page.show();
    this.sections.draw();
    this.pins.draw();
  }

  count() {
    const run = (this.runs || []).find((each) => each.id === this.chosen[0]);
    const about = run && this.chosen.length === 1
      ? [run.status, run.step === null ? "" : `step ${run.step.toLocaleString("en")}`, run.changed ? ago(Date.now() / 1000 - run.changed) : "", run.loss === null || run.loss === undefined ? "" : `loss ${numberText(run.loss)}`] : [];
    this.setStatus(["live", ...about, `${this.page.table.size().toLocaleString("en")} records`].filter(Boolean).join(" · "), true);
  }

  // Runs whose process ended before they were complete.
  showStopped() {
    const stopped = (this.runs || []).filter((run) => this.chosen.includes(run.id) && run.status === "stopped");
    $("stopped").hidden = !stopped.length;
    $("stopped").textContent = stopped.map((run) =>
      `${run.id === "." ? run.name : run.id} stopped${run.step === null ? "" : ` at step ${run.step.toLocaleString("en")}`}: its process ended before the run was complete.`).join(" ");
  }

  setStatus(text, live) {
    $("status").textContent = text;
    $("pulse").classList.toggle("live", live);
  }
}

// Charts that a reader pinned: views of the explorer, drawn again whenever their metric grows.
class Pins {
  constructor(live) {
    this.live = live;
    this.pinned = []; // views as they are in the address
    this.figures = [];
    const button = element("button", { type: "button", id: "pin" }, "Pin");
    button.onclick = () => this.add();
    $("card-link").before(button);
  }

  add() {
    const view = [...this.live.page.state].filter(([key]) => key !== "runs" && key !== "live.view");
    this.pinned.push(view);
    this.show();
    this.live.keep();
  }

  show() {
    $("pinned").hidden = !this.pinned.length;
    this.figures = this.pinned.map((view, position) => this.figure(new Map(view), position));
    this.live.loop.cursors = [this.live.explored, ...this.figures.map((figure) => figure.cursor)];
    $("pins").replaceChildren(...this.figures);
    this.draw();
  }

  figure(view, position) {
    const remove = element("button", { type: "button", "aria-label": `unpin ${view.get("metric")}` }, "×");
    remove.onclick = () => { this.pinned.splice(position, 1); this.show(); this.live.keep(); };
    const chart = element("div", { class: "chart", role: "img", "aria-label": view.get("metric") || "" });
    const figure = element("figure", { "data-metric": view.get("metric") || "" }, element("figcaption", {}, element("b", {}, view.get("metric") || ""), remove), chart);
    figure.draw = () => {
      const table = this.live.page.table, outline = table.outline;
      const shown = outline.views.find((each) => each.metric === view.get("metric"));
      if (!shown) return;
      const kind = shown.kinds.find((each) => each.kind === view.get("kind")) || shown.kinds[0];
      figure.kind = kind.kind;
      const fields = kind.colours.map((each) => each.field);
      const colour = fields.includes(view.get("colour")) ? view.get("colour") : fields[0];
      const picked = new Map([...view].filter(([key]) => key.startsWith("pick.")).map(([key, text]) => [key.slice(5), text]));
      const [, rows] = pickRows(table.rows(shown.metric), kind, colour, picked);
      return draw(chart, outline, kind, colour, rows, metricTitle(shown.metric, rows, outline), true);
    };
    const kindOf = () => figure.kind;
    figure.cursor = new VegaCursor(chart, kindOf, (step) => this.live.loop.point(step));
    return figure;
  }

  draw(metrics = null) {
    this.figures.filter((figure) => !metrics || metrics.has(figure.dataset.metric)).forEach((figure) => figure.draw());
  }
}

function ago(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const [unit, size] = units.find(([, length]) => seconds >= length) || ["s", 1];
  return `${Math.max(0, Math.floor(seconds / size))} ${unit} ago`;
}

// Local date and time in one form for every reader: 2026-11-16 19:33:05.
function isoTime(date) {
  const two = (number) => String(number).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `${day} ${[date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":")}`;
}

// What determines which charts fit: for each metric the fields that vary, and the number of sites and runs.
function signatureOf(table, metrics) {
  return JSON.stringify([...metrics].map((metric) => {
    const { fields, known } = table.varies(metric);
    const many = [...fields].filter(([, values]) => values.size > 1).map(([field]) => field).sort();
    const count = (field) => (fields.has(field) ? fields.get(field).size : 0);
    return [many, count("site"), count("run"), known];
  }));
}

async function request(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(await answer.text());
  return answer;
}

function trouble(error) {
  $("trouble").textContent = error.message;
  $("trouble").hidden = false;
}

async function startLive() {
  try {
    await new Live().start();
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    trouble(error);
  }
}
