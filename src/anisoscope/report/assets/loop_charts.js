"use strict";
// What has an axis of training steps on the live page: losses, learning rate, gradients, alerts and the sections' figures.

const LOOP = [["train_loss", "validation_loss"], ["learning_rate"], ["gradient_norm"], ["update_ratio"]];
const LOOP_TITLES = {
  train_loss: "Loss", validation_loss: "Loss", learning_rate: "Learning rate", gradient_norm: "Norm of the gradient", update_ratio: "Update over weight norm",
};
const MOST_ALERTS = 50;

class LoopCharts {
  constructor(changed) {
    this.changed = changed; // called when the view changes, so that the address can keep it
    this.view = { smooth: 0, logX: false, logY: false, zoom: null };
    this.charts = []; // at the top of the page
    this.others = []; // further down: of the sections
    this.cursors = []; // of charts that Vega draws
    this.extent = [0, 1];
    $("smooth").oninput = () => this.set({ smooth: Number($("smooth").value) });
    $("log-x").onchange = () => this.set({ logX: $("log-x").checked });
    $("log-y").onchange = () => this.set({ logY: $("log-y").checked });
    $("unzoom").onclick = () => this.set({ zoom: null });
    addEventListener("resize", () => this.draw());
  }

  set(changes) {
    Object.assign(this.view, changes);
    this.controls();
    this.draw();
    this.changed(this.view);
  }

  controls() {
    $("smooth").value = this.view.smooth;
    $("smooth-value").textContent = this.view.smooth;
    $("log-x").checked = this.view.logX;
    $("log-y").checked = this.view.logY;
    $("unzoom").hidden = !this.view.zoom;
  }

  // What every figure over steps is given: the view, the ends of the axis, and what to call.
  shared() {
    return {
      view: this.view, extent: this.extent, point: (step) => this.point(step), zoom: (steps) => this.set({ zoom: steps }),
    };
  }

  point(step) {
    [...this.charts, ...this.others, ...this.cursors].forEach((each) => each.point(step));
  }

  // Charts of the chosen runs; runs have the colours of the table, in the order in which they were chosen.
  show(table, runs) {
    const metrics = new Set(table.head.starts.map(([name]) => name).concat([...table.metrics.keys()]));
    const alerts = metrics.has("alert") ? table.rows("alert").map((row) => ({
      step: row.step, rule: row.v_rule || "alert", colour: Math.max(0, runs.indexOf(row.run)), text: `${row.run}, ${row.site}: ${row.note || ""}`,
    })) : [];
    const lines = LOOP.map((names) => names.filter((name) => metrics.has(name))).filter((names) => names.length).map((names) =>
      [LOOP_TITLES[names[0]], names.flatMap((name) => linesOf(table.rows(name), runs, name, names.length > 1)), names.join(", ")]);
    this.extent = table.stepRange();
    this.charts = lines.map(([title, each, name]) => new StepChart(title, each, alerts, this.shared(), name));
    if (alerts.length) this.charts.splice(1, 0, new AlertTimeline(alerts, this.shared()));
    $("loop").hidden = this.extent[0] === this.extent[1];
    $("loop-charts").replaceChildren(...this.charts.map((chart) => chart.figure));
    $("run-legend").replaceChildren(...runs.map((run, i) => element("span", {}, element("i", { class: `run-${i % COLOURS}` }), run)));
    this.controls();
    this.charts.forEach((chart) => chart.draw());
    showAlerts(alerts);
  }

  draw() {
    [...this.charts, ...this.others].forEach((chart) => chart.draw());
  }
}

// One line per run: of losses the training loss is pale where there is a validation loss.
function linesOf(rows, runs, metric, both) {
  const byRun = new Map();
  for (const row of rows) {
    if (row.value === null || row.index !== null || row.site !== rows[0].site) continue;
    if (!byRun.has(row.run)) byRun.set(row.run, []);
    byRun.get(row.run).push([row.step, row.value]);
  }
  return [...byRun].map(([run, points]) => ({
    name: both ? `${run} ${metric === "train_loss" ? "training" : "validation"}` : run, colour: Math.max(0, runs.indexOf(run)), pale: both && metric === "train_loss",
    points: points.sort((a, b) => a[0] - b[0]),
  }));
}

// The last alerts as text, the newest first.
function showAlerts(alerts) {
  const last = [...alerts].sort((a, b) => b.step - a.step).slice(0, MOST_ALERTS);
  $("alerts").hidden = !last.length;
  $("alert-list").replaceChildren(...last.map(({ step, text }) => element("li", {}, element("b", {}, `step ${step.toLocaleString("en")}`), ` ${text}`)));
}
