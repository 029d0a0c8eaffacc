"use strict";
// The live page: a list of runs, their charts, and the rows that arrive while a run grows.

const LIST_EVERY = 10000; // milliseconds between two updates of the list

class Live {
  constructor() {
    this.chosen = JSON.parse(readHash().get("runs") || "[]"); // ids of runs, in the address too
    this.page = null;
    this.figures = [];
    this.turn = 0; // results of an earlier choice must not replace those of a later one
    $("filter").oninput = () => this.filter();
    bindTheme(() => this.redraw());
    window.addEventListener("hashchange", () => this.follow(JSON.parse(readHash().get("runs") || "[]")));
  }

  // Update the list; returns the runs, the last changed first.
  async list() {
    const runs = await (await request("/api/runs")).json();
    $("runs").replaceChildren(...runs.map((run) => this.entry(run)));
    this.filter();
    this.mark();
    if (!runs.length) this.setStatus("no runs in this folder yet", false);
    return runs;
  }

  // Choose the runs in the address that exist, otherwise the run that changed last.
  async start() {
    const ids = (await this.list()).map((run) => run.id);
    const existing = this.chosen.filter((id) => ids.includes(id));
    if (ids.length) await this.choose(existing.length ? existing : [ids[0]]);
    setInterval(() => this.list().catch(trouble), LIST_EVERY);
  }

  entry(run) {
    const box = element("input", { type: "checkbox", value: run.id });
    // In the order of choosing, so that a run keeps its colour when another one is added.
    box.onchange = () => this.choose([...this.chosen.filter((id) => id !== run.id), ...(box.checked ? [run.id] : [])]);
    const when = run.changed ? isoTime(new Date(1000 * run.changed)) : "no records yet";
    const details = element("small", {}, [run.model, when].filter(Boolean).join(" · "));
    const title = run.id.split("/").pop() === run.name ? run.id : run.id === "." ? run.name : `${run.id} · ${run.name}`;
    return element("li", {}, element("label", {}, box, element("span", {}, title, details)));
  }

  filter() {
    const text = $("filter").value.toLowerCase();
    for (const item of $("runs").children) item.hidden = !item.textContent.toLowerCase().includes(text);
  }

  mark() {
    for (const box of $("runs").querySelectorAll("input")) box.checked = this.chosen.includes(box.value);
  }

  follow(ids) {
    if (JSON.stringify(ids) !== JSON.stringify(this.chosen) && ids.length) this.choose(ids);
  }

  // Read the chosen runs, show them, and listen for new rows.
  async choose(ids) {
    const turn = ++this.turn;
    this.chosen = ids;
    this.mark();
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
    this.figures = fillGallery(this.page);
    this.count();
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
    this.figures.filter((figure) => isDrawn(figure) && metrics.has(figure.dataset.metric)).forEach((figure) => figure.draw());
    this.count();
  }

  redraw() {
    if (!this.page) return;
    this.page.show();
    this.figures.filter(isDrawn).forEach((figure) => figure.draw());
  }

  count() {
    this.setStatus(`live · ${this.page.table.size().toLocaleString("en")} records`, true);
  }

  setStatus(text, live) {
    $("status").textContent = text;
    $("pulse").classList.toggle("live", live);
  }
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
