// The one selection of all screens, as it stands in the address.

import { address } from "./api.js";

export const SCREENS = ["runs", "curves", "map", "datapoint", "time", "compare", "storage"];
const SHARED = ["epoch", "metric", "dp", "order", "percentile", "only", "on"];
const OWN = { time: ["item"], compare: ["mode", "other"], curves: ["scale"], datapoint: [], map: [], runs: [], storage: [] };

export function parse(place) {
  const query = new URLSearchParams(place.search);
  const screen = place.pathname.replace(/^\/+|\/+$/g, "");
  const selection = { screen: SCREENS.includes(screen) ? screen : "runs", run: query.getAll("run") };
  for (const name of [...SHARED, ...Object.values(OWN).flat()]) selection[name] = query.get(name);
  return selection;
}

export function href(selection) {
  const parameters = { run: selection.run };
  for (const name of [...SHARED, ...OWN[selection.screen]]) parameters[name] = selection[name];
  return address(`/${selection.screen}`, parameters);
}

const order = (epoch) => (epoch === "eval" ? Infinity : Number(epoch));

// What the selection means, given the runs there are: runs, epochs, the epoch and the metric in force.
export function resolve(selection, runs) {
  const known = new Map(runs.map((run) => [run.id, run]));
  let chosen = selection.run.map((id) => known.get(id)).filter(Boolean);
  const unknown = selection.run.filter((id) => !known.has(id));
  if (!chosen.length) {
    const scored = runs.filter((run) => run.epochs.some((e) => e.scores));
    chosen = [scored.find((run) => run.kind === "training") || scored[0] || runs[0]].filter(Boolean);
  }
  const scored = new Map();
  for (const run of chosen) {
    for (const e of run.epochs) {
      const key = String(e.epoch);
      const one = scored.get(key) || { epoch: key, scores: false, outputs: false, debugger: false };
      for (const flag of ["scores", "outputs", "debugger"]) one[flag] = one[flag] || e[flag];
      scored.set(key, one);
    }
  }
  if (scored.size > 1) scored.delete("eval"); // beside a training its epochs are meant; an evaluation has only one
  const epochs = [...scored.values()].sort((a, b) => order(a.epoch) - order(b.epoch));
  const last = epochs.filter((e) => e.scores).at(-1) || epochs.at(-1);
  const asked = selection.epoch !== null && scored.get(selection.epoch);
  const metrics = [];
  for (const run of chosen) for (const m of run.metrics) if (!metrics.some((o) => o.name === m.name)) metrics.push(m);
  const metric = metrics.find((m) => m.name === selection.metric) || metrics[0] || null;
  return {
    runs: chosen,
    run: chosen[0] || null,
    ids: chosen.map((run) => run.id),
    unknown,
    epochs,
    epoch: asked ? asked.epoch : last ? last.epoch : null,
    follows: !asked,
    metrics,
    metric: metric ? metric.name : null,
    direction: metric ? metric.direction : null,
    live: chosen.some((run) => run.status === "running"),
  };
}
