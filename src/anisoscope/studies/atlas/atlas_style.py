"""Style and script of the atlas page: light and dark, tables that sort, and reports that open by their address."""

from __future__ import annotations

# Okabe and Ito's palette for kinds of data (m0, m1, …), as in all reports of the library, and four more colours.
STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--page:#fff;--soft:#57606a;--rule:#d8dee4;--code:#f2f4f6;--link:#0550ae;
--all:#86bfe3;--kept:#0072b2;--twin:#a8a8a8;--good:#d9f2e6;--bad:#fbe3d6;--m0:#0072b2;--m1:#d55e00;--m2:#009e73;
--m3:#cc79a7;--m4:#b37a00;--m5:#6a3d9a;--m6:#444;--m7:#8b4513;--m8:#00a5b5}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--page:#0d1117;--soft:#9da7b1;--rule:#30363d;--code:#1b222c;
--link:#79b8ff;--all:#33688c;--kept:#58b0e8;--twin:#7d8590;--good:#12402d;--bad:#5a2a17;--m0:#4aa3df;--m1:#f28b40;
--m2:#2fc49a;--m3:#e3a1c6;--m4:#e6a823;--m5:#b79ae6;--m6:#c9d1d9;--m7:#c98f5f;--m8:#5fd3de}}
*{box-sizing:border-box} a{color:var(--link)}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:var(--ink);
background:var(--page)}
h1,h2,h4{line-height:1.2} h4{margin:1rem 0 .3rem} li{margin:.25rem 0} code{background:var(--code);padding:.1em .3em}
.wide{overflow-x:auto} table{border-collapse:collapse;font-size:12px}
th,td{padding:.25rem .5rem .25rem 0;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top;
max-width:17rem}
td:nth-child(n+2){font-variant-numeric:tabular-nums}
td.long{min-width:8rem;overflow-wrap:anywhere}
th:first-child,td:first-child{position:sticky;left:0;background:var(--page);white-space:nowrap}
th button{all:unset;cursor:pointer;font-weight:600} th button:focus-visible{outline:2px solid var(--link)}
th[aria-sort=ascending] button::after{content:" ▲"} th[aria-sort=descending] button::after{content:" ▼"}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(240px,44vw),1fr));gap:.75rem}
.grid[hidden]{display:none} figure{margin:0;min-width:0} figcaption{font-size:13px;overflow-wrap:anywhere}
svg{width:100%;height:auto;display:block} .scatter{min-width:44rem}
.line{fill:none;stroke-width:2}.line.all{stroke:var(--all)}.line.no-sink{stroke:var(--kept)}
.line.untrained{stroke:var(--twin);stroke-width:1.5}.error{stroke:var(--kept)}.axis{fill:none;stroke:var(--soft)}
.tick{font-size:10px;fill:var(--soft)}.label{font-size:11px;fill:var(--ink)}
.key{white-space:nowrap;margin-right:1rem}.key i{display:inline-block;width:1.4rem;height:0;border-top:3px solid;
vertical-align:middle;margin-right:.35rem}.key .all{color:var(--all)}.key .no-sink{color:var(--kept)}
.key .untrained{color:var(--twin)}
.m0{color:var(--m0)}.m1{color:var(--m1)}.m2{color:var(--m2)}.m3{color:var(--m3)}.m4{color:var(--m4)}.m5{color:var(--m5)}
.m6{color:var(--m6)}.m7{color:var(--m7)}.m8{color:var(--m8)}
.dot{fill:currentColor;stroke:currentColor}.hollow{fill:var(--page);stroke:currentColor}
.bar{stroke:currentColor}.path{stroke:currentColor;opacity:.25}
.holds{background:var(--good)}.fails{background:var(--bad)}.open{color:var(--soft)}
.report{border-bottom:1px solid var(--rule);padding:.35rem 0} summary{cursor:pointer}
"""

# The policy of the page allows this script by its checksum, and nothing else.
SCRIPT = """
const number = text => parseFloat(text.replace(/,/g, ""));
const plain = text => /^[-–]?[0-9.,]+(?![0-9A-Za-z])/.test(text) || text === "–" || text === "varies";
document.querySelectorAll("table.sortable th").forEach(th => th.addEventListener("click", () => {
  const table = th.closest("table"), body = table.tBodies[0], down = th.getAttribute("aria-sort") === "ascending";
  const key = row => row.cells[th.cellIndex].textContent;
  const numbers = [...body.rows].every(row => plain(key(row)));
  const order = (a, b) => numbers ? (number(key(a)) || 0) - (number(key(b)) || 0) : key(a).localeCompare(key(b));
  const rows = [...body.rows].sort((a, b) => down ? -order(a, b) : order(a, b));
  table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...rows);
}));
const choose = document.querySelector("#metric");
choose.addEventListener("change", () => document.querySelectorAll(".grid[data-metric]").forEach(
  grid => { grid.hidden = grid.dataset.metric !== choose.value; }));
const open = () => {
  const report = document.getElementById(location.hash.slice(1));
  if (report && report.matches("details")) { report.open = true; report.scrollIntoView(); }
};
addEventListener("hashchange", open);
open();
"""
