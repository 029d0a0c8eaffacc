"use strict";
// Records as columns: unpacks what packed_table.py packed and returns the rows of a metric for charts.

async function unpack(text) {
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser cannot unpack the records; use one from 2023 or later.");
  }
  const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const length = new DataView(bytes.buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  return new Table(head, bytes.subarray(4 + length));
}

// Byte planes back to numbers: all first bytes come before all second bytes.
function column(bytes, offset, rows, kind) {
  const size = Number(kind[1]);
  const plain = new Uint8Array(rows * size);
  for (let plane = 0; plane < size; plane++) {
    for (let row = 0; row < rows; row++) plain[row * size + plane] = bytes[offset + plane * rows + row];
  }
  return new { u2: Uint16Array, u4: Uint32Array, f4: Float32Array }[kind](plain.buffer);
}

const known = (x) => (Number.isNaN(x) ? null : Number(x.toPrecision(7)));

class Table {
  constructor(head, bytes) {
    this.head = head;
    this.outline = head.outline;
    this.columns = {};
    let offset = 0;
    for (const [name, kind] of head.columns) {
      this.columns[name] = column(bytes, offset, head.rows, kind);
      offset += head.rows * Number(kind[1]);
    }
    this.metrics = new Map(); // by name: rows, the position of each by its key, and what varies in them
    this.added = 0; // rows that arrived after packing
    this.ends = head.lists.step.reduce(([low, high], step) => [Math.min(low, step), Math.max(high, step)], [Infinity, -Infinity]);
  }

  size() {
    return this.head.rows + this.added;
  }

  // The first and the last step of all rows.
  stepRange() {
    return this.ends[0] <= this.ends[1] ? this.ends : [0, 0];
  }

  // The rows of one metric, built on first use; rows that arrive later are added.
  rows(metric) {
    return this.about(metric).rows;
  }

  about(metric) {
    if (!this.metrics.has(metric)) {
      const rows = [];
      this.head.starts.forEach(([name, first], position) => {
        const next = position + 1 < this.head.starts.length ? this.head.starts[position + 1][1] : this.head.rows;
        if (name === metric) for (let i = first; i < next; i++) rows.push(this.row(i));
      });
      this.metrics.set(metric, { rows: withAllKeys(rows), positions: null, varies: null });
    }
    return this.metrics.get(metric);
  }

  // A later row of the same key replaces the earlier one, as in a run. The cost of a row does not depend on the
  // number of rows: a run may grow for days.
  append(rows) {
    const late = new Map();
    for (const row of rows) late.set(row.metric, [...(late.get(row.metric) || []), row]);
    late.forEach((some, metric) => this.join(this.about(metric), some, this.positions(metric)));
  }

  join(about, late, positions) {
    for (const row of late) {
      if (row.behind) row.layer += this.head.depths[`${row.run}\n${row.stack}`] || 0;
      this.ends = [Math.min(this.ends[0], row.step), Math.max(this.ends[1], row.step)];
      const key = rowKey(row), position = positions.get(key);
      if (position === undefined) {
        positions.set(key, about.rows.length);
        this.added++;
      }
      about.rows[position === undefined ? about.rows.length : position] = row;
    }
    const keys = variantKeys(about.rows.slice(0, 1));
    if (variantKeys(late).some((key) => !keys.includes(key))) {
      withAllKeys(about.rows); // a new key, which all earlier rows lack
      about.varies = null;
    } else {
      for (const row of late) for (const key of keys) if (!(key in row)) row[key] = NONE;
    }
    if (about.varies) late.forEach((row) => note(about.varies, row));
  }

  positions(metric) {
    const about = this.about(metric);
    if (!about.positions) about.positions = new Map(about.rows.map((row, position) => [rowKey(row), position]));
    return about.positions;
  }

  // The different values of every field of a metric's rows, and whether any row has a value.
  varies(metric) {
    const about = this.about(metric);
    if (!about.varies) {
      about.varies = { fields: new Map(), known: false };
      for (const row of about.rows) note(about.varies, row);
    }
    return about.varies;
  }

  text(name, i) {
    return this.head.lists[name][this.columns[name][i]];
  }

  row(i) {
    const site = this.head.sites[this.columns.site[i]];
    const run = this.text("run", i);
    const index = this.text("index", i);
    const value = known(this.columns.value[i]);
    const error = known(this.columns.error[i]);
    const half = error === null ? null : error * this.head.factors[this.columns.error_kind[i]];
    // An interval does not leave the range of its metric.
    const [least, most] = ["least", "most"].map((name) => (this.columns[name] ? this.text(name, i) : null));
    const depth = site.behind ? this.head.depths[`${run}\n${site.stack}`] || 0 : 0;
    const row = {
      run, tokens: this.text("tokens", i), stream: site.stream, site: this.text("site", i),
      layer: site.layer === null ? null : site.layer + depth,
      head: site.heads ? index : site.head, index: site.heads ? null : index,
      step: this.text("step", i), value, error,
      low: value === null || half === null ? null : Math.max(value - half, least === null ? -Infinity : least),
      high: value === null || half === null ? null : Math.min(value + half, most === null ? Infinity : most),
      null: known(this.columns.null[i]), n: this.text("n", i), note: this.text("note", i),
      x: this.columns.x ? known(this.columns.x[i]) : null,
    };
    for (const [key, entry] of Object.entries(this.head.variants[this.columns.variant[i]])) row["v_" + key] = entry;
    return row;
  }

  // All records as CSV, in the columns that a run exports.
  csv() {
    const names = ["run", "step", "site", "metric", "version", "tokens", "index", "variant", "value", "error", "error_kind", "null", "n", "note"];
    const lines = [names.join(",")];
    this.head.starts.forEach(([metric, first], position) => {
      const next = position + 1 < this.head.starts.length ? this.head.starts[position + 1][1] : this.head.rows;
      for (let i = first; i < next; i++) {
        lines.push(names.map((name) => cell(
          name === "metric" ? metric : name in this.head.lists ? this.text(name, i) : known(this.columns[name][i]))).join(","));
      }
    });
    return lines.join("\r\n") + "\r\n";
  }
}

// A variant's key that only some rows have gets a value in the others too, so that they differ in it.
function withAllKeys(rows) {
  const keys = variantKeys(rows);
  for (const row of rows) for (const key of keys) if (!(key in row)) row[key] = NONE;
  return rows;
}

function variantKeys(rows) {
  return fieldsOf(rows).filter((field) => field.startsWith("v_"));
}

function note(varies, row) {
  for (const field in row) {
    if (!FIELDS.includes(field) && !field.startsWith("v_")) continue;
    if (!varies.fields.has(field)) varies.fields.set(field, new Set());
    if (row[field] !== null && row[field] !== undefined) varies.fields.get(field).add(row[field]);
  }
  varies.known ||= row.value !== null;
}

// Equal for two rows of the same measurement.
function rowKey(row) {
  const variant = Object.keys(row).filter((key) => key.startsWith("v_") && row[key] !== NONE).sort();
  return JSON.stringify(["run", "step", "site", "tokens", "head", "index", ...variant].map((key) => [key, row[key]]));
}

function cell(value) {
  if (value === null || value === undefined) return "";
  let text = String(value);
  // A spreadsheet would evaluate a text that starts like a formula.
  if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
