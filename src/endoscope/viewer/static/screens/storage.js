// Storage: the pages of each run, damaged and dropped records, and sizes on disk.

import { fresh } from "../api.js";
import { failure, h, kind, replace, skeleton, table } from "../dom.js";
import { bytes, count, plural, show } from "../format.js";
import { turns } from "../turns.js";

function folder(one, largest, running) {
  const pages = one.pages;
  const total = (key) => pages.reduce((sum, page) => sum + (page[key] || 0), 0);
  const dropped = total("dropped");
  return h("details.section", { data: { folder: one.name }, open: one.damage.length > 0 },
    h("summary.folder", {}, h("h3", {}, one.name), h("span.mono", {}, plural(pages.length, "page")), h("span.mono", {}, plural(total("records"), "record")), h("span.mono", {}, bytes(one.bytes)),
      h("span.track", { "aria-hidden": "true" }, h("span.share", { style: { width: `${(one.bytes / Math.max(1, largest)) * 100}%` } })),
      h("span.pills", {}, one.damage.length ? h("span.pill.bad", {}, `${count(one.damaged)} damaged`) : null,
      dropped ? h("span.pill.warn", {}, `${count(dropped)} dropped`) : null,
      pages.some((page) => !page.closed) ? h("span", { class: running ? "pill" : "pill warn" }, running ? "still open" : "incomplete") : null)),
    one.damaged > one.damage.length ? h("p.sub", {}, `The first ${one.damage.length} of ${count(one.damaged)}:`) : null,
    one.damage.length ? table("Damage", [
      { title: "file", cell: (d) => d.file }, { title: "record", number: true, cell: (d) => d.record ?? "–" }, { title: "reason", cell: (d) => d.reason }], one.damage) : null,
    h("div.scroll", {}, table(`Pages of ${one.name}`, [
      { title: "page", cell: (p) => p.name },
      { title: "records", number: true, cell: (p) => count(p.records || 0) },
      { title: "datapoints", number: true, cell: (p) => count(p.datapoints || 0) },
      { title: "dropped", number: true, cell: (p) => count(p.dropped || 0) },
      { title: "closed", cell: (p) => (p.closed ? "yes" : running ? "no, still being written" : "no, incomplete") },
      { title: "size", number: true, cell: (p) => bytes(p.bytes) }], pages)));
}

// What saving outputs and debug outputs cost: validations with and without it.
function costText({ captured, others }) {
  const took = (one, what) => `${show(one.median_s)} s ${what} (${one.epochs > 1 ? "median of " : ""}${plural(one.epochs, "epoch")})`;
  return `A validation took ${took(captured, "with stored outputs or debug outputs")}${others ? `, ${took(others, "without")}` : ""}.`;
}

function otherFiles(files) {
  if (!files.length) return null;
  const total = files.reduce((sum, one) => sum + one.bytes, 0);
  return h("details.section", { data: { folder: "other files" } },
    h("summary.folder", {}, h("h3", {}, "Other files"), h("span.mono", {}, plural(files.length, "file")), h("span", {}), h("span.mono", {}, bytes(total))),
    h("div.scroll", {}, table("Other files", [{ title: "file", cell: (f) => f.name }, { title: "size", number: true, cell: (f) => bytes(f.bytes) }], files)));
}

function runPanel(run, answer) {
  const all = answer.folders.flatMap((one) => one.pages);
  const damage = answer.folders.reduce((sum, one) => sum + one.damaged, 0);
  const dropped = all.reduce((sum, page) => sum + (page.dropped || 0), 0);
  const largest = Math.max(1, ...answer.folders.map((one) => one.bytes));
  const total = (title, value, bad) => h("div", {}, h("dt", {}, title), h("dd", { class: bad ? "bad" : null }, value));
  return h("section.panel", { "aria-label": run.name }, h("h2", {}, run.name),
    h("dl.totals", {}, total("on disk", bytes(answer.bytes)), total("pages", count(all.length)), total("records", count(all.reduce((s, p) => s + (p.records || 0), 0))),
      total("damage found so far", count(damage), damage > 0), total("dropped", count(dropped), dropped > 0)),
    answer.cost ? h("p.sub", {}, costText(answer.cost)) : null,
    h("p.sub", {}, "Storage checks the lines and lengths of all pages, and the bytes of the datapoints that were opened; ", h("code", {}, "endoscope pages verify"), " checks everything."),
    answer.problems.length ? h("ul.problems", {}, answer.problems.map((text) => h("li", {}, text))) : null,
    answer.folders.length ? answer.folders.map((one) => folder(one, largest, run.status === "running")) : kind(run.status === "running" ? "No pages yet" : "No pages", run.status === "running" ? "They will appear here after the first validation that saves some." : "This run saved no datapoints, outputs or debug outputs."),
    otherFiles(answer.files));
}

export function mount(root, app) {
  const body = h("div.stack", {}, skeleton(120, 240));
  root.append(h("h1", { style: { "margin-bottom": "12px" } }, "Storage"), body);
  const turn = turns();
  return {
    async update() {
      const late = turn();
      const runs = app.current.runs;
      const open = new Set([...body.querySelectorAll("details[open]")].map((one) => one.closest("section").getAttribute("aria-label") + one.dataset.folder));
      const panels = await Promise.all(runs.map(async (run) => {
        try {
          return runPanel(run, await fresh("/api/storage", { run: run.id })); // reading a datapoint may have found damage
        } catch (error) {
          return h("section.panel", {}, h("h2", {}, run.name), failure(error));
        }
      }));
      if (late()) return;
      replace(body, panels);
      for (const one of body.querySelectorAll("details")) if (open.has(one.closest("section").getAttribute("aria-label") + one.dataset.folder)) one.open = true;
    },
  };
}
