// The selection shared by all screens, stored in the address.

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

const named = (epoch) => (epoch === "eval" ? "the evaluation" : `epoch ${epoch}`);

// Selected things that do not exist: the parameter, and a text that says what is shown instead.
function absences(selection, { chosen, unknown, epochs, epoch, requested, metric }) {
  const these = chosen.length > 1 ? "these runs" : "this run";
  const notices = [];
  if (unknown.length) {
    const names = chosen.map((run) => run.name).join(", ");
    notices.push({ parameter: "run", text: `${unknown.length > 1 ? "Runs" : "Run"} ${unknown.join(", ")} ${unknown.length > 1 ? "were" : "was"} not found; ${names} ${chosen.length > 1 ? "are" : "is"} shown.` });
  }
  if (selection.on !== null && !chosen.some((run) => run.id === selection.on) && !unknown.includes(selection.on))
    notices.push({ parameter: "on", text: `Run ${selection.on}, named for the datapoint, is not among the runs shown.` });
  const evaluated = chosen.length > 0 && chosen.every((run) => run.kind === "evaluation"); // it has one epoch, whatever the query
  const beside = selection.epoch === "eval" && chosen.some((run) => run.epochs.some((e) => e.epoch === "eval"));
  if (selection.epoch !== null && !requested && epochs.length && !evaluated && !beside) {
    const text = named(selection.epoch);
    notices.push({ parameter: "epoch", text: `${text[0].toUpperCase()}${text.slice(1)} is not in ${these}; ${named(epoch.epoch)} is shown.` });
  }
  if (selection.metric !== null && metric && metric.name !== selection.metric)
    notices.push({ parameter: "metric", text: `The score ${selection.metric} is not in ${these}; ${metric.name} is shown.` });
  return notices;
}

// The selection with absent things replaced by what is shown.
export function settled(selection, current) {
  const shown = { run: current.ids, on: null, epoch: current.epoch, metric: current.metric };
  const changes = Object.fromEntries(current.absent.map(({ parameter }) => [parameter, shown[parameter]]));
  return { ...selection, ...changes };
}

// The default epoch: the last one for which all runs have scores, or else any run. Runs without scores do not count, nor
// do evaluations, which have one epoch of their own.
function latest(runs, epochs) {
  const having = runs.filter((run) => run.epochs.some((e) => e.scores && e.epoch !== "eval")).length;
  const scored = epochs.filter((e) => e.scores);
  return scored.filter((e) => e.runs === having).at(-1) || scored.at(-1) || epochs.at(-1) || null;
}

// For each run, score files that are newer than the scores shown but cannot be read.
function unreadable(runs, epoch) {
  return runs.flatMap((run) => {
    const late = run.epochs.filter((e) => e.epoch !== "eval" && e.epoch > order(epoch) && e.version !== null && !e.scores).map((e) => e.epoch);
    if (!late.length) return [];
    const which = late.length > 1 ? `${late.length} epochs, ${late[0]} to ${late.at(-1)},` : named(late[0]);
    return [`The scores of ${which} ${runs.length > 1 ? `of ${run.name} ` : ""}cannot be read; ${named(epoch)} is shown.`];
  });
}

// Resolves the selection against the existing runs: the runs shown, their epochs, and the current epoch and metric.
export function resolve(selection, runs) {
  const known = new Map(runs.map((run) => [run.id, run]));
  let chosen = [...new Set(selection.run)].map((id) => known.get(id)).filter(Boolean);
  const unknown = selection.run.filter((id) => !known.has(id));
  if (!chosen.length) {
    const scored = runs.filter((run) => run.epochs.some((e) => e.scores));
    chosen = [scored.find((run) => run.kind === "training") || scored[0] || runs[0]].filter(Boolean);
  }
  const scored = new Map();
  for (const run of chosen) {
    for (const e of run.epochs) {
      const key = String(e.epoch);
      const one = scored.get(key) || { epoch: key, scores: false, outputs: false, debugger: false, runs: 0 };
      for (const flag of ["scores", "outputs", "debugger"]) one[flag] = one[flag] || e[flag];
      if (e.scores) one.runs += 1; // runs with scores in this epoch
      scored.set(key, one);
    }
  }
  if (scored.size > 1) scored.delete("eval"); // beside a training, the slider shows the training's epochs
  const epochs = [...scored.values()].sort((a, b) => order(a.epoch) - order(b.epoch));
  const newest = latest(chosen, epochs);
  const requested = (selection.epoch !== null && scored.get(selection.epoch)) || null;
  const metrics = [];
  for (const run of chosen) for (const m of run.metrics) if (!metrics.some((o) => o.name === m.name)) metrics.push(m);
  const metric = metrics.find((m) => m.name === selection.metric) || metrics[0] || null;
  const epoch = requested || newest;
  const isScored = (e) => e.scores && epoch !== null && (String(e.epoch) === epoch.epoch || e.epoch === "eval");
  return {
    runs: chosen,
    run: chosen[0] || null,
    ids: chosen.map((run) => run.id),
    absent: runs.length ? absences(selection, { chosen, unknown, epochs, epoch, requested, metric }) : [],
    epochs,
    epoch: epoch ? epoch.epoch : null,
    newest: newest ? newest.epoch : null,
    unreadable: requested || !epoch ? [] : unreadable(chosen, epoch.epoch),
    follows: !requested,
    metrics,
    metric: metric ? metric.name : null,
    scored: metric !== null && chosen.some((run) => run.epochs.some(isScored)), // whether the epoch has a score map
    direction: metric ? metric.direction : null,
    live: chosen.some((run) => run.status === "running"),
  };
}
