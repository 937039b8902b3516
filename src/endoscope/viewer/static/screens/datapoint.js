// Datapoint: inputs, labels, meta_info, outputs and debug outputs of one datapoint.

import { getLines } from "../api.js";
import { announce, failure, h, kind, replace, skeleton } from "../dom.js";
import { better, epochText, show } from "../format.js";
import { drawItem } from "../items.js";
import { runTabs } from "../runtabs.js";
import { turns } from "../turns.js";

const FLAGS = { outputs: "outputs", debugger: "debugger" };

// Equal scores share a range of ranks: rank 3–5.
function rank(one) {
  return `rank ${one.rank}${one.tied > 1 ? `–${one.rank + one.tied - 1}` : ""} of ${one.of}`;
}

function scores(answer) {
  return h("dl.scores", {}, answer.scores.map((one) => h("div", { class: one.fails ? "fails" : null },
    h("dt", { title: better(one.direction) }, one.label, one.direction === "higher" ? " ↑" : " ↓"),
    h("dd", {}, show(one.value, 4), one.rank ? h("small", { title: "1 is the worst" }, rank(one)) : null))));
}

function sentence(answer) {
  const parts = [];
  if (answer.label !== null && answer.label !== undefined) parts.push(`label ${answer.label}`);
  const p = answer.prediction;
  if (p) parts.push(`predicted ${p.name ?? p.class}${p.probability === null || p.probability === undefined ? "" : ` with ${show(p.probability)}`}`);
  return parts.join(", ");
}

// Links to epochs that have what this one lacks.
function elsewhere(app, run, section) {
  const flag = FLAGS[section.name];
  if (!flag) return null;
  const there = run.epochs.filter((e) => e[flag]).map((e) => String(e.epoch));
  if (!there.length || there.includes(app.current.epoch)) return null;
  return h("p.soft", {}, "Captured in epoch ", there.slice(0, 12).map((epoch, i) => [i ? ", " : "", app.link({ epoch }, epoch)]), there.length > 12 ? ` and ${there.length - 12} more` : "", ".");
}

// What is absent and why, debuggers that failed, layers that ran more than once.
function notesOf(notes) {
  const rows = Object.entries(notes || {}).flatMap(([what, each]) => Object.entries(each).slice(0, 100).map(([name, why]) => [what, name, why]));
  if (!rows.length) return null;
  return h("section.section", { "aria-label": "Notes" }, h("div.section-head", {}, h("h2", {}, "Notes")), h("table", { "aria-label": "Notes" },
    h("thead", {}, h("tr", {}, ["what", "debugger", "note"].map((title) => h("th", { scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((text) => h("td", {}, String(text))))))));
}

function sectionOf(app, run, section, dp) {
  const through = (item) => {
    const link = app.link({ screen: "time", item: item.id, dp: String(dp) }, "time →");
    link.className = "small";
    link.setAttribute("aria-label", `${item.name} through time`);
    return link;
  };
  const alone = section.items.length === 1 && section.items[0].name === section.name;
  const timed = section.name === "outputs" || section.name === "debugger";
  let items;
  if (section.name === "debugger") {
    const groups = new Map();
    for (const item of section.items) groups.set(item.debugger, [...(groups.get(item.debugger) || []), item]);
    items = [...groups].map(([name, list]) => h("div.debugger", { data: { debugger: name } }, h("h3", {}, name), h("div.items", {}, list.map((item) => drawItem(item, { extra: through(item) })))));
  } else items = section.items.map((item) => drawItem(item, { extra: timed ? through(item) : null, heading: "h3", named: !alone }));
  const empty = !section.items.length && !section.problem;
  return h("section.section", { data: { section: section.name }, "aria-label": section.title },
    h("div.section-head", {}, h("h2", {}, section.title)),
    section.problem ? h("p.soft", {}, section.problem) : null,
    empty ? h("p.soft", {}, "None.") : null,
    section.problem || empty ? elsewhere(app, run, section) : null,
    h("div.items", {}, items));
}

// Resolves after the next paint; after 50 ms in a hidden window, which does not paint.
const painted = () => new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, 50);
});

// The panel that the score map and the datapoint screen share.
export function datapointPanel(app, { alone = false } = {}) {
  const title = h(alone ? "h1" : "h2", { style: { "font-size": "16px", "line-height": "24px" } }, "Datapoint");
  const pill = h("span", {});
  const links = h("div.push.links", {});
  const tabs = runTabs(app);
  const sub = h("p.sub", {});
  const numbers = h("div", { style: { "min-height": "48px", display: "flow-root" } });
  const body = h("div.sections", {}, skeleton(180, 220, 220));
  const element = h("section.panel", { "aria-label": "Datapoint" }, h("div.head", {}, title, pill, tabs.element, links), sub, numbers, body);
  const turn = turns();

  async function update() {
    const { epoch, metric } = app.current;
    const late = turn();
    const wait = setTimeout(() => (body.dataset.waiting = "true"), 150);
    try {
      const dp = await app.dp();
      const run = await app.runOf(dp);
      if (late()) return;
      tabs.show(run);
      if (dp === null) {
        title.textContent = "Datapoint";
        pill.className = pill.textContent = "";
        replace(links);
        sub.textContent = "";
        replace(numbers);
        replace(body, kind("Nothing to show yet", app.nothing()));
        return;
      }
      title.textContent = `Datapoint ${dp}`;
      replace(links,
        alone ? app.link({ screen: "map", dp }, "score map") : app.link({ screen: "datapoint", dp }, "full page"),
        app.link({ screen: "time", dp }, "through time"), app.link({ screen: "compare", dp, mode: "success", other: null }, "nearest success"));
      const { first, whole } = getLines("/api/datapoint", { run: run.id, epoch, dp, percentile: app.selection.percentile });
      const head = await first; // label, prediction and scores arrive before the values
      if (late()) return;
      const one = head.scores.find((score) => score.name === metric);
      pill.className = one && one.fails ? "pill bad" : "pill";
      pill.textContent = one && one.value !== null ? (one.fails ? "fails" : "passes") : "no score";
      pill.title = one ? `by ${one.label}` : "";
      sub.textContent = [sentence(head), epochText(head.epoch ?? epoch), run.epochs.length ? "" : "no epoch yet"].filter(Boolean).join(" · ");
      replace(numbers, scores(head));
      element.dataset.header = String(dp);
      body.dataset.waiting = "true"; // still showing the previous values
      const [answer] = await Promise.all([whole, painted()]);
      if (late()) return;
      const open = [...body.querySelectorAll('.snippet:not([hidden])')].map((el) => el.closest(".item").dataset.item);
      const height = element.scrollTop;
      const facts = answer.sections.filter((section) => section.name !== "debugger");
      const inside = answer.sections.filter((section) => section.name === "debugger");
      replace(body, h("div.facts", {}, facts.map((section) => sectionOf(app, run, section, dp))), inside.map((section) => sectionOf(app, run, section, dp)), notesOf(answer.notes));
      for (const el of body.querySelectorAll(".item")) if (open.includes(el.dataset.item)) el.querySelector("button[aria-expanded]")?.click();
      element.scrollTop = height;
      element.dataset.dp = String(dp);
      element.dataset.epoch = String(answer.epoch ?? epoch);
      announce(`Datapoint ${dp}, ${pill.textContent}, ${sentence(answer)}`);
    } catch (error) {
      if (!late()) {
        pill.className = pill.textContent = "";
        replace(numbers);
        sub.textContent = "";
        replace(body, failure(error));
        delete element.dataset.header;
        delete element.dataset.dp;
        delete element.dataset.epoch;
      }
    } finally {
      clearTimeout(wait);
      if (!late()) delete body.dataset.waiting;
    }
  }
  return { element, update };
}

export function mount(root, app) {
  const panel = datapointPanel(app, { alone: true });
  root.append(panel.element);
  return { update: panel.update };
}
