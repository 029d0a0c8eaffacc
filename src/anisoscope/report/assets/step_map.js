"use strict";
// A map of layers × training steps that grows with its run, and the alerts of all runs as a timeline.

// Five colours of viridis, from low to high.
const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function rampColour(share) {
  const at = Math.min(0.9999, Math.max(0, share)) * (RAMP.length - 1), i = Math.floor(at);
  const mix = RAMP[i].map((low, c) => Math.round(low + (at - i) * (RAMP[i + 1][c] - low)));
  return `rgb(${mix.join(",")})`;
}

class StepMap extends StepFigure {
  // `cells`: rows with layer, step and value, one for each layer and step.
  constructor(title, cells, shared, name) {
    super(title, shared, name);
    this.steps = [...new Set(cells.map((cell) => cell.step))].sort((a, b) => a - b);
    this.layers = [...new Set(cells.map((cell) => cell.layer))].sort((a, b) => b - a);
    this.values = new Map(cells.map((cell) => [`${cell.layer} ${cell.step}`, cell.value]));
    const sites = new Map(cells.map((cell) => [cell.layer, cell.site]));
    this.label = (layer) => (/^resid\.\d+$/.test(sites.get(layer)) ? String(layer) : sites.get(layer));
    const all = cells.map((cell) => cell.value);
    this.low = all.reduce((a, b) => Math.min(a, b));
    this.high = all.reduce((a, b) => Math.max(a, b));
    this.key = element("span", { class: "ramp" }, numberText(this.low), element("i"), numberText(this.high));
    this.caption.insertBefore(this.key, this.readout);
  }

  // The first and last pixel of the column of a step: half way to its neighbours.
  column(index) {
    const at = (i) => this.x(this.at(this.steps[i])), here = at(index);
    const left = index ? (at(index - 1) + here) / 2 : here, right = index + 1 < this.steps.length ? (here + at(index + 1)) / 2 : here;
    return [Math.max(MARGINS.left, left), Math.min(this.width - MARGINS.right, right)];
  }

  draw() {
    const band = Math.max(6, Math.min(16, 200 / this.layers.length)), svg = this.begin(MARGINS.top + MARGINS.bottom + band * this.layers.length);
    this.rows = band;
    const every = Math.max(1, Math.ceil(14 / band));
    this.layers.forEach((layer, row) => {
      if (row % every && row !== this.layers.length - 1) return;
      if (row === this.layers.length - 1 && row % every) return;
      svg.append(svgElement("text", { x: MARGINS.left - 6, y: MARGINS.top + (row + 0.5) * band + 4, "text-anchor": "end" }, this.label(layer)));
    });
    let before = -1; // columns thinner than a pixel are drawn once
    this.steps.forEach((step, index) => {
      const [left, right] = this.column(index);
      if (right <= left || right - before < 0.7) return;
      before = right;
      this.layers.forEach((layer, row) => {
        const value = this.values.get(`${layer} ${step}`);
        if (value === undefined) return;
        const share = this.high > this.low ? (value - this.low) / (this.high - this.low) : 0.5;
        svg.append(svgElement("rect", { class: "cell", x: left, y: MARGINS.top + row * band, width: right - left + 0.5, height: band + 0.5, fill: rampColour(share) }));
      });
    });
    this.finish(svg);
  }

  text(step) {
    const nearest = nearestPoint(this.steps.map((each) => [each]), step)[0];
    const row = Math.min(this.layers.length - 1, Math.max(0, Math.floor(((this.height_at || 0) - MARGINS.top) / this.rows)));
    const layer = this.layers[row], value = this.values.get(`${layer} ${nearest}`);
    return `step ${nearest.toLocaleString("en")}, ${/^\d/.test(this.label(layer)) ? "layer " : ""}${this.label(layer)}: ${value === undefined ? "–" : numberText(value)}`;
  }
}

// One lane per rule, one mark per alert.
class AlertTimeline extends StepFigure {
  constructor(alerts, shared) {
    super("Alerts", shared);
    this.alerts = alerts;
    this.rules = [...new Set(alerts.map((alert) => alert.rule))];
  }

  draw() {
    const lane = 20, svg = this.begin(MARGINS.top + MARGINS.bottom + lane * this.rules.length);
    this.rules.forEach((rule, row) => {
      const y = MARGINS.top + (row + 0.5) * lane;
      svg.append(svgElement("line", { class: "grid", x1: MARGINS.left, x2: this.width - MARGINS.right, y1: y, y2: y }));
    });
    for (const alert of this.alerts.filter((each) => this.inside(each.step))) {
      const y = MARGINS.top + (this.rules.indexOf(alert.rule) + 0.5) * lane;
      const mark = svgElement("circle", { class: `alert-mark run-${alert.colour % COLOURS}`, r: 5, cx: this.x(this.at(alert.step)), cy: y });
      mark.append(svgElement("title", {}, `step ${alert.step}, ${alert.rule}: ${alert.text}`));
      svg.append(mark);
    }
    this.rules.forEach((rule, row) => svg.append(svgElement("text", { class: "lane", x: MARGINS.left + 2, y: MARGINS.top + (row + 0.5) * lane - 4 }, rule)));
    this.finish(svg);
  }

  text(step) {
    const before = this.alerts.filter((alert) => alert.step <= step).length;
    return `step ${Math.round(step).toLocaleString("en")}: ${before} of ${this.alerts.length} so far`;
  }
}
