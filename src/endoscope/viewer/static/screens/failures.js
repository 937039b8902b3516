// The tables below the score map: the worst datapoints, and those that fail in several of the selected runs.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, number, plural, show, signed } from "../format.js";

const ROWS = 20;
const COMMON_ROWS = 10;

// The badness of a score: larger is worse, NaN is the worst.
function badness(value, direction) {
  const x = number(value);
  if (Number.isNaN(x)) return Infinity;
  return direction === "higher" ? -x : x;
}

// The worst rows over all selected runs, each with its run. Runs without scores in this epoch are skipped.
export async function worstOf(app, data) {
  const { epoch, metric } = app.mapParameters();
  const having = app.current.runs.filter((_, r) => data.values[r] && data.values[r].some((value) => value !== null));
  const answers = await Promise.all(having.map((run) => get("/api/worst", { run: run.id, epoch, metric, n: ROWS })));
  const rows = answers.flatMap((answer, k) => answer.rows.map((row) => ({ ...row, run: having[k] })));
  const places = new Map(having.map((run, k) => [run, k])); // ties keep the order of the runs
  return rows.sort((a, b) => {
    const [p, q] = [badness(a.value, data.direction), badness(b.value, data.direction)];
    return p === q ? places.get(a.run) - places.get(b.run) : q - p;
  }).slice(0, ROWS);
}

function predicted(row) {
  if (row.prediction === null || row.prediction === undefined) return "–";
  return typeof row.prediction === "object" ? row.prediction.name ?? row.prediction.class : row.prediction;
}

export function worstTable(app, data, rows) {
  const several = app.current.runs.length > 1;
  const previous = data.previous_epoch;
  const change = (value) => {
    const x = number(value);
    const worse = x !== null && x !== 0 && !Number.isNaN(x) ? (data.direction === "higher" ? x < 0 : x > 0) : null;
    return h("span", { class: worse === null ? "soft" : worse ? "bad" : "good" }, signed(value));
  };
  const since = several || previous === null || previous === undefined ? "change" : `since epoch ${previous}`;
  const changed = rows.some((row) => row.change !== null && row.change !== undefined);
  const labelled = rows.some((row) => row.label !== null && row.label !== undefined);
  const predictions = rows.some((row) => row.prediction !== null && row.prediction !== undefined);
  const heads = [["index", 1], ...(several ? [["run", 0]] : []), ...(labelled ? [["label", 0]] : []), ...(predictions ? [["predicted", 0]] : []), [app.named(data.metric), 1], ...(changed ? [[since, 1]] : [])];
  const pick = (row) => ({ dp: String(row.dp), ...(several ? { on: row.run.id } : {}) });
  return h("table", { "aria-label": "Worst datapoints" },
    h("thead", {}, h("tr", {}, heads.map(([title, num]) => h(num ? "th.num" : "th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr.pick", { data: { key: String(row.dp), run: row.run.id }, onclick: (event) => { if (!event.target.closest("a")) app.go(pick(row)); } },
      h("td.num", {}, app.link(pick(row), row.dp)),
      several ? h("td", {}, row.run.name) : null,
      labelled ? h("td", {}, row.label ?? "–") : null,
      predictions ? h("td", {}, predicted(row)) : null,
      h("td.num", {}, show(row.value, 4)),
      changed ? h("td.num", {}, change(row.change)) : null))));
}

// For several runs: how many datapoints fail in how many of them, and which fail in most.
export function commonFailures(app, data) {
  const runs = app.current.runs;
  if (runs.length < 2 || data.runs.length !== runs.length) return null;
  const often = new Array(runs.length + 1).fill(0);
  for (const n of data.common) often[n] += 1;
  const failing = data.indices.map((_, i) => i).filter((i) => data.common[i] > 0);
  if (!failing.length) return h("div.section", { data: { common: "0" } }, h("h2", {}, "Common failures"), h("p.sub", {}, "No datapoint fails in any of these runs."));
  failing.sort((a, b) => data.common[b] - data.common[a]);
  const shown = failing.slice(0, COMMON_ROWS);
  const counts = often.map((n, k) => [k, n]).slice(1).reverse().filter(([, n]) => n).map(([k, n]) => `${count(n)} in ${k} of ${data.scored}`).join(", ");
  const cell = (i, r) => {
    const value = data.values[r][i];
    const fails = data.fails[r][i];
    return h(fails ? "td.num.bad" : "td.num", {}, value === null ? "–" : show(value, 4), fails ? h("span.unseen", {}, " fails") : null, h("span.failmark", { "aria-hidden": "true" }, fails ? "◥" : ""));
  };
  const beside = (dp) => {
    const link = app.link({ screen: "compare", mode: "runs", other: null, dp }, "compare");
    link.setAttribute("aria-label", `datapoint ${dp} side by side`);
    return link;
  };
  return h("div.section", { data: { common: String(failing.length) } }, h("h2", {}, "Common failures"),
    h("p.sub", {}, `${plural(failing.length, "datapoint")} ${failing.length === 1 ? "fails" : "fail"}: ${counts} ${app.scoredRuns(data)}.`, shown.length < failing.length ? ` The first ${shown.length}:` : ""),
    h("div.scroll.common", {}, h("table", { "aria-label": "Common failures" },
      h("thead", {}, h("tr", {}, h("th.num", { scope: "col" }, "index"), h("th", { scope: "col" }, "fails in"), runs.map((run) => h("th.num", { scope: "col", title: run.name }, h("span.short", {}, run.name))), h("th", {}, h("span.unseen", {}, "side by side")))),
      h("tbody", {}, shown.map((i) => {
        const dp = String(data.indices[i]);
        return h("tr.pick", { data: { key: dp }, onclick: (event) => { if (!event.target.closest("a")) app.go({ dp }); } },
          h("td.num", {}, app.link({ dp }, dp)),
          h("td", {}, `${data.common[i]} of ${plural(data.scored, "run")}`),
          runs.map((_, r) => cell(i, r)),
          h("td", {}, beside(dp)));
      })))));
}
