// Through time: one value of one datapoint in all captured epochs, as a film strip, with differences between them.

import { get } from "../api.js";
import { lineChart } from "../charts.js";
import { failure, h, kind, replace, skeleton } from "../dom.js";
import { epochText, number, show } from "../format.js";
import { areClasses, below, drawBody, drawDifference, drawLineDifference, isPicture, keys, lineSpan, scalarText } from "../items.js";
import { runTabs } from "../runtabs.js";
import { turns } from "../turns.js";

// The values that can be shown: outputs and debug outputs, from the nearest epoch that has them.
async function choices(app, run, dp) {
  const { epoch } = app.current;
  const captured = run.epochs.filter((e) => e.debugger || e.outputs).map((e) => String(e.epoch));
  if (!captured.length) return [];
  const at = captured.includes(epoch) ? epoch : captured.filter((e) => Number(e) <= Number(epoch)).at(-1) || captured[0];
  const answer = await get("/api/datapoint", { run: run.id, epoch: at, dp });
  return answer.sections.filter((s) => s.name === "debugger" || s.name === "outputs").flatMap((s) => s.items.map((item) => ({ ...item, section: s })));
}

// A short text for a value that is not a picture.
function brief(item) {
  if (!item) return "not captured";
  if (item.renderer === "problem") return "damaged";
  if (item.renderer === "scalar") return scalarText(item.body.value, 4).slice(0, 24);
  if (item.renderer === "tokens") return `${item.body.of ?? item.body.values.length} ids`;
  return item.stats ? `mean ${show(item.stats.mean)}` : item.renderer;
}

const deltaText = (difference) => (number(difference.differing) !== null ? `${show(number(difference.differing) * 100)} % differ` : `Δ ${show(difference.mean_abs)}`);

function frame(app, one, on, first, span) {
  const { item, difference } = one;
  return h("button.frame", { "aria-current": on ? "true" : null, "aria-label": epochText(one.epoch), data: { epoch: String(one.epoch) }, onclick: () => app.setEpoch(one.epoch) },
    h("span.epoch", {}, epochText(one.epoch)),
    item && (isPicture(item) || item.renderer === "line") ? drawBody(item, { small: true, side: window.innerWidth > 1900 ? 240 : 160, of: epochText(one.epoch), span })
      : h("span.none", {}, brief(item)),
    h("span.delta", {}, difference ? deltaText(difference) : first ? "first" : "not comparable"));
}

function series(answer) {
  const values = (pick) => answer.epochs.filter((e) => e.item).map((e) => [Number(e.epoch), pick(e.item)]).filter(([x, y]) => Number.isFinite(x) && number(y) !== null);
  const line = (name, colour, dash, pick) => {
    const pairs = values(pick);
    return { name, colour, dash, x: pairs.map((p) => p[0]), y: pairs.map((p) => p[1]) };
  };
  if (answer.epochs.some((e) => e.item && e.item.renderer === "scalar")) return [line("value", "var(--run-0)", "", (i) => (typeof i.body.value === "number" ? i.body.value : null))];
  if (answer.epochs.some((e) => e.item && areClasses(e.item))) return [];
  return [line("max", "var(--run-1)", "6 3", (i) => i.stats && i.stats.max), line("mean", "var(--run-0)", "", (i) => i.stats && i.stats.mean), line("min", "var(--run-2)", "2 3", (i) => i.stats && i.stats.min)].filter((l) => l.x.length);
}

export function mount(root, app) {
  const title = h("h1", {}, "Through time");
  const sub = h("p.sub", {});
  const item = h("select", { "aria-label": "value to follow", style: { "max-width": "360px" }, onchange: (event) => app.go({ item: event.target.value }) });
  const body = h("div", {}, skeleton(180, 320));
  const tabs = runTabs(app);
  const notice = h("p.notice.inplace", { role: "status", hidden: true });
  const turn = turns();
  root.append(h("section.panel", {}, h("div.head", {}, title, h("label.control", {}, "value ", item), tabs.element), sub, notice, body));

  function draw(answer) {
    const frames = answer.epochs;
    const { epoch } = app.current;
    let at = frames.findIndex((e) => String(e.epoch) === epoch);
    if (at < 0) at = frames.findLastIndex((e) => Number(e.epoch) <= Number(epoch));
    if (at < 0) at = Number(epoch) < Number(frames[0].epoch) ? 0 : frames.length - 1;
    const now = frames[at];
    const before = frames[at - 1];
    const exact = String(now.epoch) === epoch || now.epoch === "eval";
    const span = lineSpan(...frames.map((e) => e.item));
    const slider = h("input", { type: "range", min: 0, max: frames.length - 1, value: at, "aria-label": "captured epoch", disabled: frames.length < 2, "aria-valuetext": epochText(now.epoch), oninput: (event) => app.setEpoch(frames[Number(event.target.value)].epoch) });
    const held = document.activeElement && document.activeElement.getAttribute("aria-label") === "captured epoch";
    const wide = window.innerWidth > 1900;
    const side = wide ? 704 : 320;
    const strip = body.querySelector(".strip")?.scrollLeft || 0;
    const picture = now.item && isPicture(now.item);
    const large = (one, name) => h("div.item", {}, h("h2", {}, name), drawBody(one, { small: true, side, of: name, span }), below(one, "same range in all epochs"));
    const lines = series(answer);
    replace(body,
      answer.note ? h("p.note", {}, answer.note) : null,
      h("div.strip", { role: "group", "aria-label": "film strip", tabindex: "0" }, frames.map((one, i) => frame(app, one, i === at, i === 0, span))),
      h("div.slider", {}, slider, h("output.mono", {}, epochText(now.epoch)), exact ? null : h("span.faint", {}, `${epochText(epoch)} was not captured`)),
      h("div.section", {}, h("div.stage", {},
        now.item ? large(now.item, epochText(now.epoch)) : kind("Not captured", "This epoch does not have this value."),
        before && before.item ? large(before.item, `epoch ${before.epoch} (previous)`) : h("p.soft", {}, answer.note ? "The first epoch shown." : now.epoch === "eval" ? "An evaluation has one epoch." : "This is the first captured epoch."),
        now.difference ? h("div.item", {}, h("h2", {}, "difference"),
          now.difference.src ? drawDifference(now.item, now.difference, { side }) : before ? drawLineDifference(now.item, before.item, { side }) : null,
          h("div.stats", {}, number(now.difference.differing) !== null ? h("span", {}, "differing places ", h("b", {}, `${show(number(now.difference.differing) * 100)} %`))
            : [h("span", {}, "mean |Δ| ", h("b", {}, show(now.difference.mean_abs))), h("span", {}, "max |Δ| ", h("b", {}, show(now.difference.max_abs)))])) : null)),
      lines.some((l) => l.x.length > 1) ? h("div.section", {}, h("h2", {}, picture ? "Range over epochs" : "Over epochs"), h("div.legend", { style: { margin: "0 0 8px" } }, keys(lines)), lineChart({ label: `${answer.name} over epochs`, series: lines, height: wide ? 300 : 180, now: Number(now.epoch), onpick: (e) => app.setEpoch(e) })) : null);
    body.querySelector(".strip").scrollLeft = strip;
    if (held) body.querySelector('[aria-label="captured epoch"]').focus();
  }

  return {
    async update() {
      const late = turn();
      try {
        const dp = await app.dp();
        const run = await app.runOf(dp);
        if (late()) return;
        notice.hidden = true;
        tabs.show(run);
        if (dp === null) {
          replace(body, kind("Nothing to show yet", app.nothing()));
          return;
        }
        sub.textContent = `Datapoint ${dp} of ${run.name}; differences are relative to the previous captured epoch.`;
        const items = await choices(app, run, dp);
        if (late()) return;
        if (!items.length) {
          replace(item);
          replace(body, kind("Nothing captured", "No epoch has stored outputs or debug outputs of this datapoint. To store them, add a debugger to the config and set save_datapoints."));
          return;
        }
        replace(item, items.map((one) => h("option", { value: one.id }, one.debugger ? `${one.debugger} · ${one.name}` : `${one.section.name} · ${one.name}`)));
        const chosen = items.find((one) => one.id === app.selection.item) || items.find((one) => isPicture(one)) || items[0];
        item.value = chosen.id;
        notice.hidden = app.selection.item === null || chosen.id === app.selection.item;
        notice.textContent = notice.hidden ? "" : `This datapoint has no capture of the requested value; ${chosen.debugger ? `${chosen.debugger} · ` : ""}${chosen.name} is shown.`;
        const answer = await get("/api/time", { run: run.id, dp, item: chosen.id });
        if (late()) return;
        if (!answer.epochs.length) replace(body, kind("Nothing captured", "No epoch has this value for this datapoint."));
        else draw(answer);
      } catch (error) {
        if (!late()) replace(body, failure(error));
      }
    },
  };
}
