// Score map beside a datapoint.

import { quiet } from "../api.js";
import { failure, h, kind, replace, skeleton } from "../dom.js";
import { better, count, number, plural, show, signed } from "../format.js";
import { layout, ScoreMap } from "../scoremap.js";
import { turns } from "../turns.js";
import { commonFailures, worstOf, worstTable } from "./failures.js";
import { datapointPanel } from "./datapoint.js";

const ORDERS = { failures: "worst first", index: "by index", change: "by change", disagreement: "by disagreement" };

const AHEAD = 500000; // cells of maps that are prefetched

function capturedList(app, captured) {
  const more = captured.of > captured.indices.length ? h("p.note", {}, `The first ${count(captured.indices.length)} of ${count(captured.of)}; press / to go to another one.`) : null;
  return h("nav.tokens", { "aria-label": "Captured datapoints" }, captured.indices.map((dp) => app.link({ dp: String(dp) }, h("span", {}, dp))), more);
}

export function mount(root, app) {
  const panel = datapointPanel(app);
  const sub = h("p.sub", { "aria-live": "off" });
  const order = h("select", { "aria-label": "order of the map", onchange: (event) => app.go({ order: event.target.value === "failures" ? null : event.target.value }) });
  const only = h("button", { "aria-pressed": "false", title: "failures only (f)", onclick: () => app.go({ only: app.selection.only === "failures" ? null : "failures" }) }, "Failures only");
  const percentile = h("input", {
    type: "number", min: 0, max: 100, step: "any", "aria-label": "percent of the datapoints that fail", style: { width: "64px" },
    onchange: (event) => {
      if (!event.target.reportValidity()) return; // the browser shows the reason beside the field
      event.target.value ||= "5";
      app.go({ percentile: event.target.value === "5" ? null : event.target.value });
    },
  });
  const maps = h("div.maps", { style: { "min-height": "240px" } }, skeleton(240));
  const legend = h("div.legend", {});
  const notice = h("p.notice.inplace", { role: "status", hidden: true });
  const problems = h("ul.problems", {});
  const listed = h("h2", {}, "Worst datapoints");
  const worst = h("div", { style: { "min-height": "320px" } });
  const common = h("div", {});
  const tip = h("div.tip", { hidden: true, id: "map-tip" });
  const left = h("section.panel", { "aria-label": "Score map" },
    h("div.head", {}, h("h1", {}, "Score map"), h("div.push", {}, only)), sub,
    h("div.toolbar", {}, h("label.control", {}, "order ", order), h("label.control", {}, "worst ", percentile, "% fail")),
    notice, problems, maps, legend, common, h("div.section", {}, listed, worst));
  root.append(h("div.split", {}, left, panel.element));
  document.body.append(tip);

  let drawn = []; // one ScoreMap per run
  let shown = null;
  let hovered = null;
  const requested = new WeakSet(); // maps whose changes were requested

  // Loads the change since the previous epoch on hover: it takes as long as the map.
  async function addChange(data) {
    if (data.change || data.previous_epoch === null || requested.has(data)) return;
    requested.add(data);
    const { runs: run, epoch, metric, order, percentile } = data; // not from the selection: another map may be loading
    const answer = await app.map({ run, epoch, metric, order, percentile, change: "yes" }).catch(() => null);
    if (!answer) {
      requested.delete(data);
      return;
    }
    if (answer.indices.length !== data.indices.length || answer.indices.some((dp, i) => dp !== data.indices[i])) return; // the scores were written again
    data.change = answer.change;
    if (shown?.data === data) refreshTip();
  }

  // Updates the tip when the map under a resting mouse changes.
  function refreshTip() {
    if (tip.hidden || !hovered) return;
    const [position, , from] = hovered;
    if (drawn.includes(from) && position < shown.positions.length) hover(...hovered);
    else tip.hidden = true;
  }

  function hover(position, event, from) {
    hovered = [position, event, from];
    for (const map of drawn) map.hover(map === from || position < 0 ? -1 : position);
    from.hover(position);
    tip.hidden = position < 0 || !shown;
    if (tip.hidden) return;
    const i = shown.positions[position];
    const { data } = shown;
    const lines = [`datapoint ${data.indices[i]}`];
    app.current.runs.forEach((run, r) => {
      const value = data.values[r] ? data.values[r][i] : null;
      const text = value === null ? "no score" : show(value, 4);
      lines.push(`${app.current.runs.length > 1 ? `${run.name}  ` : ""}${app.named(data.metric)} ${text}${data.fails[r] && data.fails[r][i] ? "  fails" : ""}`);
    });
    if (app.current.runs.length < 2) addChange(data); // the change is known for the first run only
    if (app.current.runs.length < 2 && data.change && number(data.change[i]) !== null) lines.push(`since epoch ${data.previous_epoch}  ${signed(data.change[i])}`);
    tip.textContent = lines.join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8)}px`;
  }

  function pick(position, run) {
    app.go({ dp: String(shown.indices[position]), ...(app.current.runs.length > 1 ? { on: run.id } : {}) });
  }

  function draw() {
    const { data, positions } = shown;
    const several = app.current.runs.length > 1;
    maps.className = several ? "maps several" : "maps";
    if (drawn.length !== app.current.runs.length || maps.dataset.runs !== app.current.ids.join(" ")) {
      maps.dataset.runs = app.current.ids.join(" ");
      drawn = app.current.runs.map((run) => new ScoreMap({ label: run.name, onpick: (position) => pick(position, run), onhover: hover }));
      replace(maps, app.current.runs.map((run, r) => h("div", {}, several ? h("h3", { title: run.name }, h("span.run", {}, run.name), h("span.faint", { data: { fails: String(r) } })) : null, drawn[r].element)));
    }
    const all = positions.length === data.indices.length;
    const width = Math.max(120, drawn[0].element.clientWidth);
    const height = Math.max(240, Math.min(480, left.clientHeight * 0.42));
    maps.style.minHeight = "";
    drawn.forEach((map, r) => {
      const values = data.values[r] || [];
      const fails = data.fails[r] || [];
      const failing = data.failures[r] ?? 0;
      const scored = values.some((value) => value !== null);
      map.draw({
        values: all ? values : positions.map((i) => values[i]), fails: all ? fails : positions.map((i) => fails[i]), range: data.range, direction: data.direction,
      }, width, height, `${app.named(data.metric)} of ${plural(positions.length, "datapoint")}, ${ORDERS[data.order] || data.order}; ${scored ? `${failing} fail` : "no scores"}. j and k go to the next and the previous one.`);
      Object.assign(map.canvas.dataset, { epoch: data.epoch, metric: data.metric });
      const heading = maps.querySelector(`[data-fails="${r}"]`);
      if (heading) heading.textContent = scored ? plural(failing, "failure") : "no scores";
    });
    refreshTip();
  }

  function mark(dp) {
    const at = shown ? shown.indices.findIndex((i) => String(i) === String(dp)) : -1;
    for (const map of drawn) map.select(at);
    for (const tr of left.querySelectorAll("tbody tr")) tr.classList.toggle("on", tr.dataset.key === String(dp));
  }

  function describe() {
    const { data, positions } = shown;
    const percent = number(data.percentile);
    const all = data.scored === 1 ? "the 1" : data.scored === 2 ? "both" : `all ${data.scored}`;
    const fails = data.runs.length > 1 ? `${count(data.common.filter((n) => n === data.scored).length)} fail in ${all} ${app.scoredRuns(data)}` : `${count(data.failures[0] || 0)} ${data.failures[0] === 1 ? "fails" : "fail"} (of the worst ${show(percent)} %)`;
    const some = positions.length === data.indices.length ? "" : `${count(positions.length)} of `;
    sub.textContent = `${some}${plural(data.indices.length, "datapoint")}, ${ORDERS[data.order] || data.order}. ${fails}.`;
    replace(problems, data.problems.map((text) => h("li", {}, text)));
    replace(common, commonFailures(app, data));
    const infinite = data.values.reduce((sum, values) => sum + values.reduce((n, v) => n + (v === "Infinity" || v === "-Infinity"), 0), 0);
    replace(legend,
      data.range ? h("span.ramp", {}, show(data.range[0]), h(`span.bar.map${data.direction === "higher" ? ".flip" : ""}`, { "aria-hidden": "true" }), show(data.range[1])) : null,
      h("span", {}, `${app.named(data.metric)}: ${better(data.direction)}`),
      h("span", {}, h("i.swatch.fail", {}), "fails"),
      h("span", {}, h("i.swatch.nan", {}), `NaN${data.nan ? ` (${count(data.nan)})` : ""}`),
      infinite ? h("span", {}, h("i.swatch.inf", {}), `infinite (${count(infinite)})`) : null,
      h("span", {}, h("i.swatch.missing", {}), `no score${data.missing ? ` (${count(data.missing)})` : ""}`));
  }

  async function showWorst(late) {
    const data = shown.data;
    const rows = await worstOf(app, data);
    if (late()) return;
    replace(worst, worstTable(app, data, rows));
    mark(app.selection.dp ?? shown?.indices[0]);
  }

  // Prefetches the maps of other metrics and epochs, the nearest first, one at a time while no other request is pending.
  let soon = 0;
  const ahead = turns();
  function prepare() {
    clearTimeout(soon);
    const late = ahead();
    soon = setTimeout(() => fetchAhead(late), 50);
  }

  async function fetchAhead(late) {
    const { epochs, epoch, metrics, metric } = app.current;
    const at = epochs.findIndex((e) => e.epoch === epoch);
    const away = (e) => Math.abs(epochs.indexOf(e) - at);
    const others = epochs.filter((e) => e.scores && e.epoch !== epoch).sort((a, b) => away(a) - away(b)).map((e) => ({ epoch: e.epoch }));
    const most = AHEAD / Math.max(1, shown.data.indices.length * shown.data.runs.length);
    const candidates = [...others.slice(0, 2), ...metrics.filter((m) => m.name !== metric).map((m) => ({ metric: m.name })), ...others.slice(2)];
    for (const changes of candidates.slice(0, Math.max(2, most))) {
      await quiet();
      if (late() || document.hidden) return;
      await app.map(changes).catch(() => null); // errors show when the map is needed
    }
  }

  const turn = turns();

  const resized = new ResizeObserver(() => {
    if (shown) {
      draw();
      mark(app.selection.dp ?? shown.indices[0]);
    }
  });
  resized.observe(left);

  return {
    async update() {
      const choices = Object.entries(ORDERS).filter(([name]) => name !== "disagreement" || app.current.runs.length > 1);
      replace(order, choices.map(([name, text]) => h("option", { value: name }, text)));
      order.value = app.order();
      only.setAttribute("aria-pressed", String(app.selection.only === "failures"));
      if (document.activeElement !== percentile) percentile.value = app.selection.percentile || "5";
      notice.hidden = !app.current.unreadable.length;
      notice.textContent = app.current.unreadable.join(" ");
      const late = turn();
      if (!shown && app.current.runs.length === 1) { // reserve about the height of the map, so that nothing below it moves
        const plan = layout(app.current.run.datapoints || 0, maps.clientWidth, Math.max(240, Math.min(480, left.clientHeight * 0.42)));
        maps.style.minHeight = `${Math.max(240, plan.rows * plan.size)}px`;
      }
      const detail = panel.update();
      const unscored = (captured) => {
        shown = null;
        drawn = [];
        delete maps.dataset.runs;
        maps.style.minHeight = "";
        replace(problems);
        listed.textContent = captured.of ? "Captured datapoints" : "Worst datapoints";
        const title = captured.trouble ? captured.trouble.message : app.current.metric ? "This epoch has no readable scores" : "No scores yet";
        const none = app.current.metric ? "Choose another epoch above." : app.current.live ? "The first validation has not finished. The map will appear here." : "This run has no scores per datapoint. See Curves and Storage.";
        replace(maps, kind(title[0].toUpperCase() + title.slice(1), captured.of ? "Its captured datapoints are listed by index; j and k go to the next and the previous one." : none));
        replace(legend);
        replace(common);
        replace(worst, captured.of ? capturedList(app, captured) : null);
        sub.textContent = captured.of ? `${plural(captured.of, "captured datapoint")}, by index.` : "";
      };
      try {
        const answer = await app.shown();
        if (late()) return;
        if (answer.data === null) {
          unscored(answer);
          await detail;
          return;
        }
        listed.textContent = "Worst datapoints";
        const same = answer === shown; // only the datapoint has changed
        shown = answer;
        if (!same) {
          draw();
          describe();
        }
        mark(app.selection.dp ?? shown.indices[0]);
        prepare();
        showWorst(late).catch((error) => late() || replace(worst, failure(error)));
      } catch (error) {
        if (late()) return;
        shown = null;
        drawn = [];
        delete maps.dataset.runs;
        replace(maps, failure(error));
        sub.textContent = "";
        replace(problems);
        replace(legend);
        replace(common);
        replace(worst);
      }
      await detail;
    },
    themed() {
      if (shown) draw();
    },
    unmount() {
      clearTimeout(soon);
      ahead();
      resized.disconnect();
      tip.remove();
    },
  };
}
