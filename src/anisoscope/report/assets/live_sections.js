"use strict";
// The questions of a report on the live page: each metric as a map of layers × steps that grows, or as lines of runs.

class LiveSections {
  constructor(loop) {
    this.loop = loop;
    this.holders = []; // one per metric, filled when it comes near the screen
  }

  show(page) {
    this.page = page;
    const { table } = page, { outline } = table, topics = new Map();
    for (const view of outline.views) {
      if (!(view.metric in LOOP_TITLES)) topics.set(view.topic, [...(topics.get(view.topic) || []), view]);
    }
    // a page that is updated for days must release the earlier charts
    for (const chart of $("sections").querySelectorAll(".chart")) if (chart.view) chart.view.finalize();
    this.loop.others = [];
    this.holders = [];
    const policies = table.head.lists.tokens.includes("no-sink") ? [element("p", { class: "quiet" }, "Maps and lines over steps: without first and massive tokens.")] : [];
    $("sections").replaceChildren(...policies, ...outline.questions.filter(([topic]) => topics.has(topic)).map(([topic, title]) =>
      element("section", { class: "question", id: "topic-" + topic }, element("h2", {}, title),
        element("div", { class: "figures grid" }, ...topics.get(topic).map((view) => this.holder(view))))));
    drawWhenSeen(this.holders);
  }

  holder(view) {
    const holder = element("div", { class: "holder", "data-metric": view.metric });
    holder.draw = () => this.fill(holder, view);
    this.holders.push(holder);
    return holder;
  }

  fill(holder, view) {
    const made = this.stepFigure(view);
    this.loop.others = this.loop.others.filter((each) => each !== holder.made);
    holder.made = made;
    if (made) {
      holder.replaceChildren(made.figure);
      this.loop.others.push(made);
      made.draw();
    } else {
      if (!holder.picture) holder.replaceChildren(holder.picture = galleryFigure(this.page, view));
      holder.picture.draw();
    }
  }

  // A figure over steps, without first and massive tokens if they were measured; null if the metric has none.
  stepFigure(view) {
    const { table } = this.page, first = view.kinds[0].kind;
    const map = view.kinds.find((each) => each.kind === "map"), kind = map || view.kinds.find((each) => each.kind === "steps");
    if (!kind || !["profile", "steps", "map"].includes(first)) return null; // others have a chart of their own
    const together = { ...kind, axes: [...kind.axes, "run"] };
    const [, rows] = pickRows(table.rows(view.metric), together, null, new Map([["tokens", "no-sink"]]));
    if (new Set(rows.map((row) => row.step)).size < 2) return null;
    const single = new Set(rows.map((row) => row.run)).size === 1;
    if (map && single) return new StepMap(view.title, rows, this.loop.shared(), view.metric);
    return new StepChart(view.title + (map ? ", mean over layers" : ""), meansOf(rows, table.head.lists.run), [], this.loop.shared(), view.metric);
  }

  // Draw again what is drawn, of some metrics or of all.
  draw(metrics = null) {
    this.holders.filter((holder) => holder.firstChild && (!metrics || metrics.has(holder.dataset.metric))).forEach((holder) => holder.draw());
  }
}

// One line per run: the mean of all rows at each step.
function meansOf(rows, runs) {
  const sums = new Map();
  for (const { run, step, value } of rows) {
    if (!sums.has(run)) sums.set(run, new Map());
    const [sum, count] = sums.get(run).get(step) || [0, 0];
    sums.get(run).set(step, [sum + value, count + 1]);
  }
  return [...sums].map(([run, steps]) => ({
    name: run, colour: Math.max(0, runs.indexOf(run)), pale: false,
    points: [...steps].map(([step, [sum, count]]) => [step, sum / count]).sort((a, b) => a[0] - b[0]),
  }));
}
