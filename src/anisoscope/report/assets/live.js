"use strict";
// The live page: a list of runs, their charts, and the rows that arrive while a run grows.

const LIST_EVERY = 10000; // milliseconds between looks for new runs

class Live {
  constructor() {
    this.chosen = JSON.parse(readHash().get("runs") || "[]"); // ids of runs, in the address too
    this.page = null;
    this.figures = [];
    this.turn = 0; // a choice that was overtaken by the next one must not show
    $("filter").oninput = () => this.filter();
    bindTheme(() => this.redraw());
    window.addEventListener("hashchange", () => this.follow(JSON.parse(readHash().get("runs") || "[]")));
  }

  // The list as it is now; gives the runs, the last changed first.
  async list() {
    const runs = await (await ask("/api/runs")).json();
    $("runs").replaceChildren(...runs.map((run) => this.entry(run)));
    this.filter();
    this.mark();
    if (!runs.length) this.tell("no runs in this folder yet", false);
    return runs;
  }

  // What the address asks for as far as it is there, else the run that changed last.
  async start() {
    const ids = (await this.list()).map((run) => run.id);
    const there = this.chosen.filter((id) => ids.includes(id));
    if (ids.length) await this.choose(there.length ? there : [ids[0]]);
    setInterval(() => this.list().catch(trouble), LIST_EVERY);
  }

  entry(run) {
    const box = element("input", { type: "checkbox", value: run.id });
    box.onchange = () => this.choose([...$("runs").querySelectorAll("input:checked")].map((each) => each.value));
    const when = run.changed ? new Date(1000 * run.changed).toLocaleString() : "no records yet";
    const facts = element("small", {}, [run.model, when].filter(Boolean).join(" · "));
    const title = run.id.split("/").pop() === run.name ? run.id : run.id === "." ? run.name : `${run.id} · ${run.name}`;
    return element("li", {}, element("label", {}, box, element("span", {}, title, facts)));
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

  // Reads the chosen runs whole, shows them, and listens for more.
  async choose(ids) {
    const turn = ++this.turn;
    this.chosen = ids;
    this.mark();
    if (this.stream) this.stream.close();
    $("main").hidden = !ids.length;
    $("report").hidden = !ids.length;
    if (!ids.length) return this.tell("choose a run", false);
    const query = new URLSearchParams(ids.map((id) => ["run", id]));
    $("report").setAttribute("href", "/report?" + query);
    const answer = await (await ask("/api/book?" + query)).json();
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
    // Positions in the address would be stale after a break: read the runs whole again.
    this.stream.onerror = () => {
      this.stream.close();
      this.tell("connection lost, trying again", false);
      setTimeout(() => { if (turn === this.turn) this.choose(this.chosen).catch(trouble); }, 2000);
    };
  }

  async arrived(event, turn) {
    if (turn !== this.turn) return;
    if (event.again) return this.choose(this.chosen);
    const table = this.page.table, metrics = new Set(event.rows.map((row) => row.metric));
    const before = signatureOf(table, metrics);
    table.append(event.rows);
    // Other charts may fit now (a second step, a new metric): only the server knows which.
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
    this.tell(`live · ${this.page.table.size().toLocaleString("en")} records`, true);
  }

  tell(text, live) {
    $("told").textContent = text;
    $("pulse").classList.toggle("live", live);
  }
}

// What decides which charts fit: for each metric, the fields that vary, and how many sites there are.
function signatureOf(table, metrics) {
  return JSON.stringify([...metrics].map((metric) => {
    const { fields, known } = table.varies(metric);
    const many = [...fields].filter(([, values]) => values.size > 1).map(([field]) => field).sort();
    return [many, fields.has("site") ? fields.get("site").size : 0, known];
  }));
}

async function ask(address) {
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
