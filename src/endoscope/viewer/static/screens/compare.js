// Side by side: a failure against the nearest success, one datapoint in two epochs, or in two runs.

import { get } from "../api.js";
import { failure, h, kind, replace, skeleton } from "../dom.js";
import { number, show } from "../format.js";
import { drawBody, statsLine } from "../items.js";

const MODES = { success: "Failure and success", epochs: "Two epochs", runs: "Two runs" };

function sideCard(app, side, mode) {
  const run = app.list.runs.find((one) => one.id === side.run);
  const p = side.prediction;
  const predicted = p === null || p === undefined ? null : typeof p === "object" ? `predicted ${p.name ?? p.class}${p.probability === null || p.probability === undefined ? "" : ` with ${show(p.probability)}`}` : `predicted ${p}`;
  const score = (side.scores || []).find((s) => s.name === app.current.metric);
  const scored = score && score.value !== null && score.value !== undefined;
  const fails = scored && score.fails;
  return h("div.sidecard", {},
    h("div.head", {}, h("h2", {}, mode === "epochs" ? `Epoch ${side.epoch}` : mode === "runs" ? (run ? run.name : side.run) : `Datapoint ${side.dp}`),
      h("span", { class: fails ? "pill bad" : "pill" }, fails ? "fails" : scored ? "passes" : "no score")),
    h("p.sub", {}, [side.label === null || side.label === undefined ? null : `label ${side.label}`, predicted, mode === "success" ? null : `datapoint ${side.dp}`, mode === "epochs" ? null : `epoch ${side.epoch}`].filter(Boolean).join(" · ")),
    h("div.stats", {}, (side.scores || []).map((s) => h("span", {}, `${s.name} `, h("b", {}, show(s.value, 4))))));
}

function layer(one, largest) {
  const distance = one.distance;
  const relative = distance ? number(distance.relative_l2) : null;
  const share = relative === null || !Number.isFinite(relative) || !largest ? 0 : relative / largest;
  const cell = (item, name) => h("div.item", {}, item ? [drawBody(item, { small: true, side: 224 }), statsLine(item)] : h("p.soft", {}, `not captured ${name}`));
  const like = one.left || one.right;
  return h("article.layer", { data: { layer: one.id } },
    h("div.label", {}, one.debugger ? h("p.mono.faint", {}, one.debugger) : null, h("h3", {}, one.name),
      distance ? [h("div.meter", { "aria-hidden": "true" }, h("i", { style: { width: `${Math.max(1, share * 100)}%` } })),
        h("div.stats", {}, h("span", {}, "relative distance ", h("b", {}, show(distance.relative_l2))), h("span", {}, "cosine ", h("b", {}, show(distance.cosine))))] : h("p.faint", {}, "not comparable")),
    cell(one.left, "on the left"), cell(one.right, "on the right"),
    h("div.item", {}, one.src && like ? drawBody({ ...like, name: `difference of ${one.name}`, renderer: "image", body: { ...like.body, src: one.src, width: one.width || like.body.width || 160, height: one.height || like.body.height || 160 } }, { small: true, side: 224 }) : h("span.faint", {}, "–")));
}

export function mount(root, app) {
  const buttons = Object.fromEntries(Object.entries(MODES).map(([mode, text]) => [mode, h("button", { onclick: () => app.go({ mode, other: null }) }, text)]));
  const other = h("input", { type: "search", inputmode: "numeric", "aria-label": "the other one", style: { width: "96px" }, onchange: (event) => app.go({ other: event.target.value.trim() || null }) });
  const otherEpoch = h("select", { "aria-label": "the other epoch", onchange: (event) => app.go({ other: event.target.value }) });
  const otherControl = h("label.control", {});
  const body = h("div", {}, skeleton(64, 200, 200));
  root.append(h("section.panel", {}, h("div.head", {}, h("h1", {}, "Side by side"), h("div.tabs", { role: "group", "aria-label": "what to compare" }, Object.values(buttons)), h("div.push", {}, otherControl)), body));
  return {
    async update() {
      const asked = app.href();
      const late = () => asked !== app.href();
      const { ids, epoch, epochs, run } = app.current;
      const mode = app.selection.mode in MODES ? app.selection.mode : ids.length > 1 ? "runs" : "success";
      for (const [name, button] of Object.entries(buttons)) button.setAttribute("aria-pressed", String(name === mode));
      let wanted = app.selection.other;
      const captured = run ? run.epochs.filter((e) => e.debugger || e.outputs).map((e) => String(e.epoch)) : [];
      if (mode === "epochs") {
        const others = captured.filter((e) => e !== epoch);
        wanted = others.includes(wanted) ? wanted : others.filter((e) => Number(e) < Number(epoch)).at(-1) || others[0] || null;
        replace(otherEpoch, others.map((e) => h("option", { value: e }, `epoch ${e}`)));
        otherEpoch.value = wanted || "";
        replace(otherControl, "with ", otherEpoch);
      } else if (mode === "success") {
        other.placeholder = "nearest";
        other.value = wanted || "";
        replace(otherControl, "with datapoint ", other);
      } else replace(otherControl);
      try {
        const dp = await app.dp();
        if (late()) return;
        if (dp === null) return void replace(body, kind("Nothing to compare yet", "No datapoint of this run has a score yet."));
        if (mode === "runs" && ids.length < 2) return void replace(body, kind("One run is picked", h("p", {}, "Tick a second one in the run menu above, or under ", app.link({ screen: "runs" }, "Runs"), ".")));
        if (mode === "epochs" && !wanted) return void replace(body, kind("Only one epoch was captured", "There is no second one to compare with yet."));
        const answer = await get("/api/compare", { mode, run: ids, epoch, dp, other: wanted, metric: app.current.metric, percentile: app.selection.percentile });
        if (late()) return;
        const distances = answer.layers.map((l) => (l.distance ? number(l.distance.relative_l2) : 0)).filter(Number.isFinite);
        const largest = Math.max(0, ...distances);
        replace(body,
          answer.left && answer.right ? h("div.layer", { style: { border: "0" } }, h("div", {}), sideCard(app, answer.left, mode), sideCard(app, answer.right, mode), h("div.sidecard", {}, h("h2", {}, "Difference"), h("p.sub", {}, "Layers that differ most come first."), answer.note ? h("p.note", {}, answer.note) : null)) : null,
          answer.problem ? h("p.soft", {}, answer.problem) : null,
          answer.problem && captured.length && !captured.includes(epoch) ? h("p.soft", {}, "Captured in epoch ", captured.map((e, i) => [i ? ", " : "", app.link({ epoch: e }, e)]), ".") : null,
          answer.layers.length ? answer.layers.map((one) => layer(one, largest)) : answer.problem ? null : kind("Nothing was captured", "Neither side has outputs or debug outputs in this epoch."));
      } catch (error) {
        if (!late()) replace(body, failure(error));
      }
    },
  };
}
