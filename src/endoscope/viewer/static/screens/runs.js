// Runs: the list of runs, and which of them the other screens show.

import { h, replace } from "../dom.js";
import { ago, bytes, count } from "../format.js";

const LOOK = { running: "pill on", finished: "pill", interrupted: "pill warn", failed: "pill bad", died: "pill bad" };

function epochsOf(run) {
  const scored = run.epochs.filter((e) => e.scores);
  if (run.kind === "evaluation") return "–";
  const planned = run.progress && run.progress.epochs_wanted ? ` of ${run.progress.epochs_wanted}` : "";
  return `${scored.length}${planned}`;
}

function row(app, run) {
  const chosen = app.current.ids.includes(run.id);
  const captured = run.epochs.filter((e) => e.debugger).length;
  const open = { screen: run.metrics.length || run.epochs.some((e) => e.debugger || e.outputs) ? "map" : run.epochs.length ? "curves" : "storage", run: [run.id], epoch: null, dp: null };
  return h("tr", { class: chosen ? "on" : null, data: { key: run.id } },
    h("td", {}, h("input", { type: "checkbox", checked: chosen, "aria-label": `show ${run.name}`, onchange: (event) => app.toggleRun(run.id, event.target.checked) })),
    h("td", {}, app.link(open, run.name)),
    h("td", {}, run.kind),
    h("td", {}, h("span", { class: LOOK[run.status] || "pill" }, run.status), run.status_text && run.status_text !== run.status ? h("div.faint", {}, run.status_text) : null),
    h("td.num", {}, epochsOf(run)),
    h("td.num", {}, run.datapoints === null ? "–" : count(run.datapoints)),
    h("td.num", {}, captured ? count(captured) : "–"),
    h("td", {}, run.metrics.map((m) => m.label).join(", ") || "–"),
    h("td.num", {}, bytes(run.size)),
    h("td.num", {}, ago(run.last_write)));
}

function trouble(run) {
  if (!run.problems.length) return null;
  return h("div.section", {}, h("h2", {}, `${run.name}: problems`), h("p.sub", {}, "Everything else of this run is shown."),
    h("ul.problems", {}, run.problems.map((text) => h("li", {}, text))));
}

export function mount(root, app) {
  const panel = h("section.panel.list", {});
  root.append(panel);
  const heads = [["", 0], ["run", 0], ["kind", 0], ["status", 0], ["epochs", 1], ["datapoints", 1], ["captured epochs", 1], ["scores per datapoint", 0], ["size", 1], ["last write", 1]];
  return {
    async update() {
      const { runs, problems } = app.list;
      if (!runs.length) {
        replace(panel, h("h1", {}, "Runs"), app.emptyPage());
        return;
      }
      const focused = document.activeElement?.closest("tr")?.dataset.key;
      const chosen = app.current.runs.length;
      replace(panel,
        h("div.head", {}, h("h1", {}, "Runs"), h("div.push.links", {},
          chosen > 1 ? app.link({ screen: "compare", mode: "runs", other: null }, "Side by side") : null, app.link({ screen: "curves" }, "Curves"), app.link({ screen: "map" }, "Score map"))),
        h("p.sub", {}, `${runs.length} ${runs.length === 1 ? "run" : "runs"}, ${chosen} selected for the other screens. Select several to compare them.`),
        h("div", { style: { "margin-top": "12px" } }, h("table.airy", { "aria-label": "Runs" },
          h("thead", {}, h("tr", {}, heads.map(([title, num]) => h(num ? "th.num" : "th", { scope: "col" }, title || h("span.unseen", {}, "shown"))))),
          h("tbody", {}, runs.map((run) => row(app, run))))),
        runs.map(trouble),
        problems.length ? h("div.section", {}, h("h2", {}, "Problems with folders"), h("ul.problems", {}, problems.map((text) => h("li", {}, text)))) : null);
      if (focused) panel.querySelector(`tr[data-key="${CSS.escape(focused)}"] input`)?.focus();
    },
  };
}
