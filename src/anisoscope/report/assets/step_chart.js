"use strict";
// Lines over training steps as plain SVG: smoothing, log axes, zoom and a cursor that all charts share.

const SVG = "http://www.w3.org/2000/svg";
const MARGINS = { left: 52, right: 18, top: 6, bottom: 22 };
const COLOURS = 8;

function svgElement(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Exponential moving average, corrected for its start: the first values count as much as the later ones.
function smoothed(points, weight) {
  if (!weight) return points;
  let sum = 0, total = 0;
  return points.map(([step, value]) => {
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return [step, sum / total];
  });
}

// At most `columns` pairs: the lowest and highest value of every column, so that no spike disappears.
function thinned(points, columns) {
  if (points.length <= 2 * columns) return points;
  const kept = [], size = points.length / columns;
  for (let start = 0; start < points.length; start += size) {
    const part = points.slice(Math.floor(start), Math.floor(start + size));
    if (!part.length) continue;
    let low = part[0], high = part[0];
    for (const point of part) {
      if (point[1] < low[1]) low = point;
      if (point[1] > high[1]) high = point;
    }
    kept.push(...(low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  }
  kept.push(points[points.length - 1]);
  return kept;
}

// Round numbers between two ends: 1, 2 or 5 times a power of ten; on a log axis powers of ten with 2 and 5 if few.
function ticksOf(low, high, log, count) {
  if (log) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const every = Math.max(1, Math.ceil((last - first) / count)), steps = last - first <= 2 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let power = first; power <= last; power += every) for (const step of steps) ticks.push(step * 10 ** power);
    return ticks.filter((tick) => tick >= low && tick <= high);
  }
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) || power;
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high + step / 1e6; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  return ticks;
}

function numberText(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 || size >= 1e6 ? value.toExponential(1).replace(".0e", "e") : String(Number(value.toPrecision(3)));
}

const stepText = (step) => (step >= 10000 ? `${Number((step / 1000).toPrecision(3))}k` : String(Number(step.toPrecision(6))));

// From values to pixels, and back.
function scaleOf(log, low, high, from, to) {
  const f = log ? Math.log : (v) => v, back = log ? Math.exp : (v) => v, a = f(low), b = f(high);
  const there = (v) => from + (to - from) * (f(v) - a) / (b - a);
  return Object.assign(there, { invert: (p) => back(a + (p - from) / (to - from) * (b - a)) });
}

// What all figures over training steps share: an axis of steps, a cursor on it, and a zoom.
// `shared`: { view: { logX, logY, smooth, zoom }, extent: [first, last step], point(step), zoom([from, to]) }.
class StepFigure {
  constructor(title, shared, name = "") {
    Object.assign(this, { title, shared });
    this.readout = element("span", { class: "readout" });
    this.box = element("div", { class: "step-chart", role: "img", "aria-label": `${title} over training steps` });
    this.caption = element("figcaption", {}, element("b", {}, title), ...(name ? [element("code", {}, name)] : []), this.readout);
    this.figure = element("figure", {}, this.caption, this.box);
  }

  inside(step) {
    const { zoom } = this.shared.view;
    return !zoom || (step >= zoom[0] && step <= zoom[1]);
  }

  // A log axis has no 0.
  at(step) {
    return this.shared.view.logX ? Math.max(step, 0.5) : step;
  }

  // An empty picture with the axis of steps; all figures of a page have the same one.
  begin(height) {
    const { view, extent } = this.shared, width = Math.max(240, this.box.clientWidth);
    const [x0, last] = (view.zoom || extent).map((step) => this.at(step)), x1 = last > x0 ? last : x0 + 1;
    Object.assign(this, { width, height, x: scaleOf(view.logX, x0, x1, MARGINS.left, width - MARGINS.right) });
    const svg = svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    for (const tick of ticksOf(x0, x1, view.logX, Math.max(3, (width - MARGINS.left - MARGINS.right) / 110))) {
      if (view.logX && tick < 1) continue;
      svg.append(svgElement("text", { x: this.x(tick), y: height - 6, "text-anchor": "middle" }, stepText(tick)));
    }
    return svg;
  }

  // Put the picture on the page, with the cursor and the band of the zoom on top.
  finish(svg) {
    const bottom = this.height - MARGINS.bottom;
    this.cursor = svgElement("line", { class: "cursor", y1: MARGINS.top, y2: bottom, x1: -9, x2: -9 });
    this.band = svgElement("rect", { class: "zoom", y: MARGINS.top, height: bottom - MARGINS.top, width: 0 });
    svg.append(this.cursor, this.band);
    this.bind(svg);
    this.box.replaceChildren(svg);
  }

  // Move the shared cursor, and zoom all figures to the steps between press and release.
  bind(svg) {
    let start = null;
    const position = (event) => event.clientX - svg.getBoundingClientRect().left;
    svg.onpointermove = (event) => {
      this.height_at = event.clientY - svg.getBoundingClientRect().top;
      this.shared.point(this.x.invert(position(event)));
      if (start !== null) {
        this.band.setAttribute("x", Math.min(start, position(event)));
        this.band.setAttribute("width", Math.abs(position(event) - start));
      }
    };
    svg.onpointerleave = () => this.shared.point(null);
    svg.onpointerdown = (event) => { start = position(event); };
    svg.onpointerup = (event) => {
      const end = position(event), wide = start !== null && Math.abs(end - start) > 8;
      const steps = wide ? [start, end].map((p) => this.x.invert(p)).sort((a, b) => a - b) : null;
      start = null;
      if (steps) this.shared.zoom(steps);
    };
  }

  // Show the cursor at a step, with what is there; null hides it.
  point(step) {
    if (!this.cursor) return;
    const shown = step !== null && this.inside(step), x = shown ? this.x(this.at(step)) : -9;
    this.cursor.setAttribute("x1", x); this.cursor.setAttribute("x2", x);
    this.readout.textContent = shown ? this.text(step) : "";
  }
}

class StepChart extends StepFigure {
  // `lines`: [{ name, colour, pale, points: [[step, value], …] }]; `alerts`: [{ step, text }, …].
  constructor(title, lines, alerts, shared, name = "") {
    super(title, shared, name);
    Object.assign(this, { lines, alerts });
  }

  draw() {
    const { view } = this.shared, svg = this.begin(150), columns = this.width - MARGINS.left - MARGINS.right;
    this.shown = this.lines.map((line) => {
      const points = smoothed(line.points, line.pale ? 0 : view.smooth).filter(([step, value]) => this.inside(step) && (!view.logY || value > 0));
      return { ...line, points, drawn: thinned(points, columns) };
    });
    const all = this.shown.flatMap((line) => line.drawn);
    if (!all.length) { this.cursor = null; this.box.replaceChildren(element("p", { class: "quiet" }, "no values here")); return; }
    let y0 = Math.min(...all.map((p) => p[1])), y1 = Math.max(...all.map((p) => p[1]));
    if (y0 === y1) { y0 -= Math.abs(y0) / 2 || 0.5; y1 += Math.abs(y1) / 2 || 0.5; }
    this.y = scaleOf(view.logY, y0, y1, this.height - MARGINS.bottom, MARGINS.top);
    const named = new Set();
    for (const tick of ticksOf(y0, y1, view.logY, 4)) {
      if (named.has(numberText(tick))) continue;
      named.add(numberText(tick));
      svg.append(svgElement("line", { class: "grid", x1: MARGINS.left, x2: this.width - MARGINS.right, y1: this.y(tick), y2: this.y(tick) }));
      svg.append(svgElement("text", { x: MARGINS.left - 6, y: this.y(tick) + 4, "text-anchor": "end" }, numberText(tick)));
    }
    for (const { step, text } of this.alerts.filter((alert) => this.inside(alert.step))) {
      const mark = svgElement("line", { class: "alert", x1: this.x(this.at(step)), x2: this.x(this.at(step)), y1: MARGINS.top, y2: this.height - MARGINS.bottom });
      mark.append(svgElement("title", {}, `step ${step}: ${text}`));
      svg.append(mark);
    }
    for (const line of this.shown.filter((each) => each.drawn.length)) {
      const path = line.drawn.map(([step, value], i) => `${i ? "L" : "M"}${this.x(this.at(step)).toFixed(1)},${this.y(value).toFixed(1)}`).join("");
      const hidden = this.shown.slice(0, this.shown.indexOf(line)).some((other) => this.coincide(line, other));
      const style = `line run-${line.colour % COLOURS}${line.pale ? " pale" : ""}${hidden ? " over" : ""}`;
      svg.append(line.drawn.length > 1 ? svgElement("path", { class: style, d: path })
        : svgElement("circle", { class: style + " dot", r: 3, cx: this.x(this.at(line.drawn[0][0])), cy: this.y(line.drawn[0][1]) }));
    }
    this.finish(svg);
  }

  // Whether two lines would hide each other: then the second one is dashed.
  coincide(line, other) {
    if (line.pale || other.pale || line.drawn.length < 2 || other.drawn.length < 2) return false;
    return line.drawn.every(([step, value]) => Math.abs(this.y(nearestPoint(other.drawn, step)[1]) - this.y(value)) < 1.5);
  }

  text(step) {
    const texts = this.shown.filter((line) => line.points.length && !line.pale).map((line) => `${line.name} ${numberText(nearestPoint(line.points, step)[1])}`);
    return `step ${Math.round(step).toLocaleString("en")}: ${texts.slice(0, 6).join(" · ")}`;
  }
}

function nearestPoint(points, step) {
  let low = 0, high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= step) low = middle; else high = middle;
  }
  return Math.abs(points[low][0] - step) <= Math.abs(points[high][0] - step) ? points[low] : points[high];
}
