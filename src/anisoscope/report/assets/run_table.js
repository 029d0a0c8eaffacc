"use strict";
// The table of runs: choose, sort, filter, and one column of the runs' settings.

const RUN_COLUMNS = [["name", "run"], ["status", "status"], ["step", "step"], ["loss", "loss"], ["alert", "last alert"]];

class RunTable {
  constructor(choose, changed) {
    Object.assign(this, { choose, changed, runs: [], sort: ["changed", -1], column: "" });
    $("filter").oninput = () => { this.filter(); changed(); };
    $("column").onchange = () => { this.column = $("column").value; this.fill(); changed(); };
  }

  // Show these runs; `chosen` are ids, in the order of their colours.
  show(runs, chosen) {
    this.runs = runs;
    this.chosen = chosen;
    const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config || {})))].sort();
    if ($("column").options.length !== keys.length + 1) {
      $("column").replaceChildren(element("option", { value: "" }, "none"), ...keys.map((key) => element("option", { value: key }, key)));
    }
    $("column").value = this.column;
    this.fill();
  }

  fill() {
    const columns = [...RUN_COLUMNS, ...(this.column ? [["config." + this.column, this.column]] : [])];
    $("run-heads").replaceChildren(element("th", { scope: "col" }, element("span", { class: "hidden" }, "shown")), ...columns.map(([key, title]) => this.head(key, title)));
    const [key, sign] = this.sort;
    const sorted = [...this.runs].sort((a, b) => sign * compare(cellOf(a, key), cellOf(b, key)));
    $("runs").replaceChildren(...sorted.map((run) => this.row(run, columns)));
    this.filter();
  }

  head(key, title) {
    const [sorted, sign] = this.sort;
    const button = element("button", { type: "button", class: "sort" }, title + (sorted === key ? (sign > 0 ? " ↑" : " ↓") : ""));
    button.onclick = () => { this.sort = [key, sorted === key ? -sign : 1]; this.fill(); this.changed(); };
    return element("th", { scope: "col", "aria-sort": sorted === key ? (sign > 0 ? "ascending" : "descending") : "none" }, button);
  }

  row(run, columns) {
    const place = this.chosen.indexOf(run.id);
    const box = element("input", { type: "checkbox", value: run.id, "aria-label": `show ${run.id}` });
    box.checked = place >= 0;
    // In the order of choosing, so that a run keeps its colour when another one is added.
    box.onchange = () => this.choose([...this.chosen.filter((id) => id !== run.id), ...(box.checked ? [run.id] : [])]);
    const cells = columns.map(([key]) => {
      const cell = element("td", {}, textOf(run, key));
      if (key === "name") cell.append(element("small", {}, [run.model, run.changed ? isoTime(new Date(1000 * run.changed)) : "no records yet"].filter(Boolean).join(" · ")));
      if (key === "status") cell.setAttribute("class", "state " + run.status);
      if (key === "alert" && run.alert) cell.setAttribute("title", run.alert);
      return cell;
    });
    const swatch = element("i", { class: place >= 0 ? `swatch run-${place % COLOURS}` : "swatch" });
    return element("tr", { "data-run": run.id }, element("td", {}, box, swatch), ...cells);
  }

  filter() {
    const text = $("filter").value.toLowerCase();
    for (const item of $("runs").children) item.hidden = !item.textContent.toLowerCase().includes(text);
  }
}

function cellOf(run, key) {
  return key.startsWith("config.") ? (run.config || {})[key.slice(7)] : key === "name" ? run.id : run[key];
}

function textOf(run, key) {
  const value = cellOf(run, key);
  if (value === null || value === undefined) return "–";
  if (key === "name") return run.id.split("/").pop() === run.name ? run.id : run.id === "." ? run.name : `${run.id} · ${run.name}`;
  if (key === "alert") return (run.alert_step === null || run.alert_step === undefined ? "" : `step ${run.alert_step}: `) + value;
  return typeof value === "number" ? (key === "step" ? value.toLocaleString("en") : numberText(value)) : String(value);
}

// Numbers by size, texts by letter; what is missing comes last.
function compare(a, b) {
  const missing = (x) => x === null || x === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
