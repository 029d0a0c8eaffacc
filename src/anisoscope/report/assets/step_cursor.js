"use strict";
// The cursor on charts that Vega draws: a line over the plot at the step that all figures show.

const STEP_KINDS = ["steps", "map", "head_steps"];

class VegaCursor {
  // `kindOf` returns the kind of chart that the element shows now.
  constructor(chart, kindOf, point) {
    Object.assign(this, { chart, kindOf });
    chart.classList.add("with-cursor");
    chart.addEventListener("pointermove", (event) => { const step = this.stepAt(event.clientX); if (step !== null) point(step); });
    chart.addEventListener("pointerleave", () => point(null));
  }

  // The scale of steps with the left edge of the plot; null if the chart has no axis of steps.
  axis() {
    const drawn = this.chart.querySelector("svg, canvas");
    if (!drawn || !this.chart.view || !STEP_KINDS.includes(this.kindOf())) return null;
    const scale = this.chart.view.scale("x"), left = drawn.getBoundingClientRect().left + this.chart.view.origin()[0];
    return { scale, left, top: drawn.getBoundingClientRect().top + this.chart.view.origin()[1] };
  }

  stepAt(clientX) {
    const axis = this.axis();
    if (!axis) return null;
    const x = clientX - axis.left, [from, to] = axis.scale.range();
    if (x < from || x > to) return null;
    if (axis.scale.invert) return axis.scale.invert(x);
    const steps = axis.scale.domain();
    return Number(steps[Math.min(steps.length - 1, Math.floor((x - from) / axis.scale.step()))]);
  }

  point(step) {
    const axis = step === null ? null : this.axis();
    let line = this.chart.querySelector(":scope > .cursor-line");
    const x = axis === null ? NaN : this.position(axis.scale, step);
    if (!Number.isFinite(x)) { if (line) line.remove(); return; }
    if (!line) this.chart.append(line = element("i", { class: "cursor-line" }));
    const box = this.chart.getBoundingClientRect();
    line.style.left = `${axis.left - box.left + x}px`;
    line.style.top = `${axis.top - box.top}px`;
    line.style.height = `${this.chart.view.height()}px`;
  }

  // Where a step is on a scale: of one with a band per step, the middle of the nearest one.
  position(scale, step) {
    if (scale.invert) {
      const [low, high] = scale.domain().map(Number), at = Math.max(step, Math.min(low, high));
      return at > high ? NaN : scale(at);
    }
    const steps = scale.domain().map(Number);
    if (!steps.length || step > steps[steps.length - 1] || step < steps[0]) return NaN;
    const nearest = steps.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best), steps[0]);
    return scale(nearest) + scale.bandwidth() / 2;
  }
}
