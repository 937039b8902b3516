// Curves: scores and losses over the epochs of all selected runs; a click sets the epoch everywhere.

import { get } from "../api.js";
import { lineChart, runColour, runDash } from "../charts.js";
import { failure, h, kind, replace, skeleton } from "../dom.js";
import { better, number, show } from "../format.js";
import { keys } from "../items.js";
import { turns } from "../turns.js";

function grouped(runs) {
  const groups = new Map();
  runs.forEach((run, i) => {
    for (const one of run.series) {
      const id = `${one.kind} ${one.name}`;
      if (!groups.has(id)) groups.set(id, { name: one.label, kind: one.kind, direction: one.direction, lines: [], flat: [] });
      const group = groups.get(id);
      if (!group.direction) group.direction = one.direction;
      const line = { name: run.name, colour: runColour(i), dash: runDash(i), x: [], y: [] };
      one.epochs.forEach((epoch, k) => {
        if (epoch === "eval" || epoch === null) group.flat.push({ name: run.name, value: one.values[k] });
        else {
          line.x.push(Number(epoch));
          line.y.push(one.values[k]);
        }
      });
      if (line.x.length) group.lines.push(line);
    }
  });
  return [...groups.values()];
}

function chart(app, group, log) {
  const title = group.kind === "loss" ? `training ${group.name}` : group.name;
  const now = app.current.epoch === "eval" || app.current.epoch === null ? null : Number(app.current.epoch);
  const last = group.lines.map((line) => `${line.name} ${show(line.y.at(-1), 4)}`).join(", ");
  const values = now === null ? [] : group.lines.filter((line) => line.x.includes(now)).map((line) => show(line.y[line.x.indexOf(now)], 4));
  return h("section.panel", { data: { series: title } },
    h("div.chart-head", {}, h("h2", {}, title), h("span.faint", {}, group.kind === "loss" ? "mean over each epoch's batches" : better(group.direction)),
      h("span.mono", { style: { "margin-left": "auto" } }, values.length ? `epoch ${now}: ${values.join(", ")}` : "")),
    group.lines.length
      ? lineChart({ label: `${title} over epochs: ${last}`, series: group.lines, height: window.innerWidth > 1900 ? 320 : 240, now, log: log && group.lines.some((l) => l.y.some((y) => number(y) > 0)), onpick: (epoch) => app.setEpoch(epoch) })
      : null,
    group.flat.length ? h("dl.totals", {}, group.flat.map((one) => h("div", {}, h("dt", {}, `${one.name}, evaluated`), h("dd", {}, show(one.value, 4))))) : null);
}

export function mount(root, app) {
  const title = h("h1", {}, "Curves");
  const log = h("button.small", { "aria-pressed": "false", onclick: () => app.go({ scale: app.selection.scale === "log" ? null : "log" }, { replace: true }) }, "Log scale");
  const legend = h("div.legend", { style: { margin: "0" } });
  const body = h("div", {}, skeleton(280, 280));
  root.append(h("div.head", { style: { "margin-bottom": "12px" } }, title, h("span.sub", {}, "Click to set the epoch on all screens."), h("div.push", {}, legend, log)), body);
  const turn = turns();
  return {
    async update() {
      const late = turn();
      const ids = app.current.ids;
      log.setAttribute("aria-pressed", String(app.selection.scale === "log"));
      let answer;
      try {
        answer = await get("/api/curves", { run: ids });
      } catch (error) {
        if (!late()) replace(body, failure(error));
        return;
      }
      if (late()) return;
      replace(legend, keys(answer.runs.map((run, i) => ({ name: run.name, colour: runColour(i), dash: runDash(i) }))));
      const groups = grouped(answer.runs);
      const order = (group) => (group.kind === "loss" ? 1 : 0);
      groups.sort((a, b) => order(a) - order(b) || (b.lines.length > 0) - (a.lines.length > 0));
      if (!groups.length) replace(body, kind("No epoch is finished yet", "Scores and losses will appear here after the first validation."));
      else replace(body, h("div.charts", {}, groups.map((group) => chart(app, group, app.selection.scale === "log"))));
    },
  };
}
