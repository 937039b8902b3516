// Side by side: a failure and the nearest success, or one datapoint in two epochs or two runs.

import { get } from "../api.js";
import { failure, h, kind, replace, skeleton } from "../dom.js";
import { epochText, number, show } from "../format.js";
import { alignedTable, below, drawBody, drawDifference, drawLineDifference, drawScalarDifference, drawTableDifference, lineSpan } from "../items.js";
import { runTabs } from "../runtabs.js";
import { turns } from "../turns.js";

const MODES = { success: "Failure and success", epochs: "Two epochs", runs: "Two runs" };

const upper = (text) => text[0].toUpperCase() + text.slice(1);

// The distance between the sides of a layer, as text; `drawn` is the drawn difference, if any.
function apart(one, drawn) {
  const { distance, left, right } = one;
  if (!left || !right) return null;
  if (!distance) return h("p.faint", {}, left.renderer === right.renderer && JSON.stringify(left.body) === JSON.stringify(right.body) ? "the same" : drawn || left.renderer === "table" ? null : "not comparable");
  const share = number(distance.differing);
  if (share !== null) return h("div.stats", { title: distance.over || null }, h("span", {}, "differing places ", h("b", {}, `${show(share * 100)} %`)));
  return h("div.stats", { title: distance.over || null }, h("span", {}, "relative distance ", h("b", {}, show(distance.relative_l2))),
    number(distance.cosine) === null ? null : h("span", {}, "cosine ", h("b", {}, show(distance.cosine))));
}

// The number that layers are ordered by: the share of differing places, or the relative distance.
const amount = (distance) => (distance ? number(distance.differing) ?? number(distance.relative_l2) ?? 0 : 0);

function sideCard(app, side, mode) {
  const run = app.list.runs.find((one) => one.id === side.run);
  const p = side.prediction;
  const predicted = p === null || p === undefined ? null : typeof p === "object" ? `predicted ${p.name ?? p.class}${p.probability === null || p.probability === undefined ? "" : ` with ${show(p.probability)}`}` : `predicted ${p}`;
  const score = (side.scores || []).find((s) => s.name === app.current.metric);
  const scored = score && score.value !== null && score.value !== undefined;
  const fails = scored && score.fails;
  return h("div.sidecard", { data: { run: side.run, epoch: String(side.epoch), dp: String(side.dp) } },
    h("div.head", {}, h("h2", {}, mode === "epochs" ? upper(epochText(side.epoch)) : mode === "runs" ? (run ? run.name : side.run) : `Datapoint ${side.dp}`),
      h("span", { class: fails ? "pill bad" : "pill" }, fails ? "fails" : scored ? "passes" : "no score")),
    h("p.sub", {}, [side.label === null || side.label === undefined ? null : `label ${side.label}`, predicted, mode === "success" ? null : `datapoint ${side.dp}`, mode === "epochs" ? null : epochText(side.epoch)].filter(Boolean).join(" · ")),
    h("div.stats", {}, (side.scores || []).map((s) => h("span", {}, `${s.label} `, h("b", {}, show(s.value, 4))))),
    h("div.inputs", {}, side.inputs.map((item) => atHead(side, item, "input")), side.labels.map((item) => atHead(side, item, "label"))),
    side.inputs.length ? null : h("p.faint", {}, side.inputs_problem || "no inputs were saved"),
    side.labels_problem ? h("p.faint", {}, side.labels_problem) : null,
    side.inputs_of > side.inputs.length ? h("p.note", {}, `${side.inputs.length} of ${side.inputs_of} inputs`) : null);
}

const atHead = (side, item, what) => h("figure.item", {}, drawBody(item, { small: true, side: window.innerWidth > 1900 ? 192 : 128, of: `datapoint ${side.dp}` }),
  h("figcaption", {}, item.name === `${what}s` ? what : `${what} ${item.name}`));

function layer(one, largest) {
  const relative = amount(one.distance);
  const share = !Number.isFinite(relative) || !largest ? 0 : relative / largest;
  const right = alignedTable(one.right, one.left);
  const sheet = [one.left, one.right].some((item) => item && ["channels", "attention", "line"].includes(item.renderer));
  const side = window.innerWidth > 1900 ? (sheet ? 480 : 320) : 240;
  const span = lineSpan(one.left, one.right);
  const cell = (item, name) => h("div.item", {}, item ? [drawBody(item, { small: true, side, span }), below(item, "same range on both sides")] : h("p.soft", {}, one.unread.includes(name) ? `unreadable on the ${name}` : `not captured on the ${name}`));
  const like = one.left || one.right;
  const difference = one.src && like ? drawDifference(like, one, { side }) : drawLineDifference(one.left, one.right, { side }) || drawScalarDifference(one.left, one.right) || drawTableDifference(one.left, right);
  return h("article.layer", { data: { layer: one.id } },
    h("div.label", {}, one.debugger ? h("p.mono.faint", {}, one.debugger) : null, h("h3", {}, one.name),
      one.distance ? h("div.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${Math.max(1, share * 100)}%` } })) : null, apart(one, difference)),
    cell(one.left, "left"), cell(right, "right"),
    h("div.item", {}, difference || h("span.faint", {}, one.left && one.right ? "–" : "")));
}

// What is missing or damaged. The messages for the values of one damaged page are alike, so three are enough.
function problems(texts) {
  const first = texts.slice(0, 3);
  return texts.length ? h("ul.soft", {}, first.map((text) => h("li", {}, text)), texts.length > first.length ? h("li", {}, `and ${texts.length - first.length} more like these`) : null) : null;
}

// In how many of the selected runs the datapoint fails.
async function common(app, dp) {
  const { data } = await app.shown();
  const at = data ? data.indices.findIndex((i) => String(i) === String(dp)) : -1;
  return at < 0 ? null : `Datapoint ${dp} fails in ${data.common[at]} of ${data.scored} ${app.scoredRuns(data)}.`;
}

export function mount(root, app) {
  const buttons = Object.fromEntries(Object.entries(MODES).map(([mode, text]) => [mode, h("button", { onclick: () => app.go({ mode, other: null }) }, text)]));
  const other = h("input", { type: "search", inputmode: "numeric", "aria-label": "the other one", style: { width: "96px" }, onchange: (event) => { event.target.blur(); app.go({ other: event.target.value.trim() || null }); } });
  const otherOne = h("select", { "aria-label": "the other epoch", onchange: (event) => app.go({ other: event.target.value }) });
  const otherControl = h("label.control", {});
  const tabs = runTabs(app);
  const notice = h("p.notice.inplace", { role: "status", hidden: true });
  const body = h("div", {}, skeleton(64, 200, 200));
  root.append(h("section.panel", {}, h("div.head", {}, h("h1", {}, "Side by side"), h("div.tabs", { role: "group", "aria-label": "what to compare" }, Object.values(buttons)), tabs.element, h("div.push", {}, otherControl)), notice, body));
  const turn = turns();

  // Fills the control with the others that exist; returns the one to compare with: the selected one if it exists.
  function choose(label, others, fallback) {
    const requested = app.selection.other;
    const chosen = others.find((one) => one.id === requested) || fallback || others[0] || null;
    otherOne.setAttribute("aria-label", label);
    replace(otherOne, others.map((one) => h("option", { value: one.id }, one.name)));
    otherOne.value = chosen ? chosen.id : "";
    replace(otherControl, "with ", otherOne);
    notice.hidden = requested === null || !chosen || chosen.id === requested || requested === app.current.epoch; // the user moved to the other epoch
    notice.textContent = notice.hidden ? "" : `${label === "the other run" ? "Run" : "Epoch"} ${requested} is not available; ${chosen.name} is shown.`;
    return chosen ? chosen.id : null;
  }

  return {
    async update() {
      const late = turn();
      const { ids, epoch, runs } = app.current;
      const mode = app.selection.mode in MODES ? app.selection.mode : ids.length > 1 ? "runs" : "success";
      for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", String(name === mode));
      try {
        const dp = await app.dp();
        const run = await app.runOf(dp);
        if (late()) return;
        tabs.show(run);
        let right = app.selection.other;
        let ids = run ? [run.id] : [];
        const captured = run ? run.epochs.filter((e) => e.debugger || e.outputs).map((e) => String(e.epoch)) : [];
        const elsewhere = captured.filter((e) => e !== "eval");
        notice.hidden = true;
        if (mode === "epochs") {
          const others = elsewhere.filter((e) => e !== epoch).map((e) => ({ id: e, name: `epoch ${e}` }));
          right = choose("the other epoch", others, others.filter((e) => Number(e.id) < Number(epoch)).at(-1));
        } else if (mode === "success") {
          other.placeholder = "nearest";
          if (document.activeElement !== other) other.value = right || "";
          replace(otherControl, "with datapoint ", other);
        } else if (runs.length > 1) {
          right = choose("the other run", runs.filter((one) => one !== run), null);
          ids = [run.id, right];
          right = null;
        } else replace(otherControl);
        if (dp === null) return void replace(body, kind("Nothing to compare yet", app.nothing()));
        if (mode === "runs" && ids.length < 2) return void replace(body, kind("Only one run is selected", h("p", {}, "Select a second one in the run menu above, or under ", app.link({ screen: "runs" }, "Runs"), ".")));
        if (mode === "epochs" && run.kind === "evaluation") return void replace(body, kind("An evaluation has one epoch", "There is no other epoch to compare with."));
        if (mode === "epochs" && !right) return void replace(body, kind("Only one epoch was captured", "There is no other epoch to compare with yet."));
        const answer = await get("/api/compare", { mode, run: ids, epoch, dp, other: right, metric: app.current.metric, percentile: app.selection.percentile });
        const often = ids.length > 1 ? await common(app, dp) : null;
        if (late()) return;
        const distances = answer.layers.map((l) => amount(l.distance)).filter(Number.isFinite);
        const largest = Math.max(0, ...distances);
        const about = h("div.sidecard", {}, h("div.head", {}, h("h2", {}, "Difference")), h("p.sub", {}, "Left minus right. The layers that differ most come first."),
          answer.note ? h("p.note", {}, answer.note) : null, often ? h("p.note", {}, often) : null);
        replace(body,
          h("div.layer", { style: { border: "0" } }, h("div", {}), sideCard(app, answer.left, mode),
            answer.right ? [sideCard(app, answer.right, mode), about] : h("div.sidecard", {}, h("div.head", {}, h("h2", {}, "Nothing to compare with")), h("p.soft", {}, answer.problem))),
          problems(answer.problems),
          answer.layers.length ? answer.layers.map((one) => layer(one, largest)) : answer.problems.length || !answer.right ? null : kind("Nothing captured", "Neither side has outputs or debug outputs in this epoch."));
      } catch (error) {
        if (!late()) replace(body, failure(error));
      }
    },
  };
}
