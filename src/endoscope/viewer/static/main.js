// The frame around all screens: routing, the selection in the address, top bar, keyboard, live updates, theme.

import { forget, fresh, get, getMap, Trouble } from "./api.js";
import { announce, failure, h, kind, replace } from "./dom.js";
import { better } from "./format.js";
import { href, parse, resolve, SCREENS, settled } from "./selection.js";

const NAMES = { runs: "Runs", curves: "Curves", map: "Score map", datapoint: "Datapoint", time: "Through time", compare: "Side by side", storage: "Storage" };
const POLL_MS = 1000;
const LIST_MS = 5000; // how old the list of runs may be while it is visible
const MENU_MS = 30000; // the same on other screens, where it is only a menu
const MAX_CAPTURED = 1000; // datapoints listed for a run without scores
const MAX_NAMED = 16; // runs in one request; for more, request the stamp of all runs
const ONE_MOVE_MS = 600; // faster epoch changes are one step of the history
const KEYS = [
  [["j"], "next datapoint, in the order of the map"],
  [["k"], "previous datapoint"],
  [["←", "→"], "previous, next epoch"],
  [["f"], "failures only"],
  [["/"], "jump to a datapoint by its index"],
  [["t"], "light or dark"],
  [["?"], "this help"],
  [["Esc"], "close what is open"],
];

const main = document.getElementById("main");
let mounted = null; // the screen on the page: {screen, update, unmount}
let stamp = null; // {of, text}: the runs, and their last stamp
let lost = null; // when the server stopped answering
let listed = 0; // when the list of runs was requested
let last = null; // the last result of `shown`
let moved = -Infinity; // when the epoch was last changed

const app = {
  selection: parse(location),
  list: { runs: [], problems: [] },
  current: null,

  // The selection after a change. Absent things are dropped, as is a run of the datapoint that is no longer shown.
  chosen(changes) {
    const next = { ...(app.current ? settled(app.selection, app.current) : app.selection), ...changes };
    if (changes.run && !changes.run.includes(next.on)) next.on = null;
    return next;
  },

  href(changes = {}) {
    return href(app.chosen(changes));
  },

  go(changes, { replace: instead = false } = {}) {
    const before = app.selection.screen;
    app.selection = app.chosen(changes);
    write(href(app.selection), instead);
    if (before !== app.selection.screen) main.scrollTop = 0;
    return show();
  },

  // A link inside the viewer: a real address, followed without reloading the page.
  link(changes, ...children) {
    return h("a", { href: app.href(changes), onclick: (event) => follow(event, changes) }, ...children);
  },

  setEpoch(epoch) {
    const follows = app.current.live && app.current.newest === String(epoch);
    const running = performance.now() - moved < ONE_MOVE_MS;
    moved = performance.now();
    return app.go({ epoch: follows ? null : String(epoch) }, { replace: running });
  },

  // Disagreement needs two runs.
  order() {
    const { order } = app.selection;
    return order && (order !== "disagreement" || app.current.runs.length > 1) ? order : "failures";
  },

  // Explains why there is no datapoint to show.
  nothing() {
    const { run, live } = app.current;
    if (app.selection.only === "failures" && app.current.scored) return "No datapoint fails here. Press f to see all datapoints.";
    if (live) return "The run has not finished its first validation. The datapoints will appear here.";
    return run && run.epochs.length ? "No datapoint of this run has a score in this epoch." : "This run has no datapoints.";
  },

  mapParameters() {
    const { ids, epoch, metric } = app.current;
    return { run: ids, epoch, metric, order: app.order(), percentile: app.selection.percentile, change: "no" };
  },

  // The score map of the selection, or of another epoch or metric. Cached while the score files stay the same.
  map(changes = {}) {
    const parameters = { ...app.mapParameters(), ...changes };
    const until = parameters.epoch === "eval" ? Infinity : Number(parameters.epoch);
    const before = (e) => e.epoch === "eval" || e.epoch <= until;
    const version = app.current.runs.map((run) => run.epochs.filter(before).map((e) => e.version).join(" ")).join("|");
    return getMap(parameters, version);
  },

  // The datapoints shown, in map order: all, or failures only. Returns the same object while nothing has changed.
  async shown() {
    if (!app.current.scored) return { positions: [], data: null, ...(await app.captured()) };
    const only = app.selection.only === "failures";
    let data;
    try {
      data = await app.map();
    } catch (error) {
      if (error.status !== 404) throw error;
      return { positions: [], data: null, trouble: error, ...(await app.captured()) }; // captured datapoints can still be shown
    }
    if (last === null || last.data !== data || last.only !== only) {
      const positions = [];
      for (let i = 0; i < data.indices.length; i += 1) if (!only || data.fails.some((one) => one[i])) positions.push(i);
      last = { indices: positions.map((i) => data.indices[i]), positions, data, only };
    }
    return last;
  },

  // The captured datapoints of a run without scores: `of` is their number, `indices` are the first ones.
  captured() {
    const { run, epoch } = app.current;
    return run && epoch !== null ? get("/api/captured", { run: run.id, epoch, n: MAX_CAPTURED }) : { indices: [], of: 0 };
  },

  // The display name of a score.
  named(metric) {
    return app.current.metrics.find((m) => m.name === metric)?.label ?? metric;
  },

  // Names the runs in which failures are counted: those with scores in the epoch of the map.
  scoredRuns({ runs, scored }) {
    const noun = scored === 1 ? "run" : "runs";
    return scored === runs.length ? noun : `${noun} that ${scored === 1 ? "has" : "have"} scores here`;
  },

  // The run whose datapoint is shown: the selected one, or the first in which the datapoint fails, or has a score.
  async runOf(dp) {
    const { runs, run } = app.current;
    const named = runs.find((one) => one.id === app.selection.on);
    if (named || runs.length < 2 || dp === null) return named || run;
    const { data } = await app.shown();
    const at = data ? data.indices.findIndex((i) => String(i) === String(dp)) : -1;
    if (at < 0) return run;
    const failing = data.fails.findIndex((fails) => fails[at]);
    return runs[Math.max(0, failing >= 0 ? failing : data.values.findIndex((values) => values[at] !== null))];
  },

  // The current datapoint: the selected one, or the first of the map.
  async dp() {
    if (app.selection.dp !== null && app.selection.dp !== "") return app.selection.dp;
    const { indices } = await app.shown();
    return indices.length ? String(indices[0]) : null;
  },
};

// Updates the address. Browsers refuse more than about 100 changes in 10 s, so while a key is held only some are written.
const WRITES = { most: 40, within: 10000, pause: 300 };
let writes = [];
let pending = null;

function write(to, instead) {
  if (pending) {
    clearTimeout(pending.timer);
    if (!instead) history.replaceState(null, "", pending.to);
    pending = null;
  }
  if (to === location.pathname + location.search) return;
  const now = performance.now();
  writes = writes.filter((at) => now - at < WRITES.within);
  if (instead && writes.length >= WRITES.most && now - writes.at(-1) < WRITES.pause) {
    pending = { to, timer: setTimeout(() => write(to, true), WRITES.pause) };
    return;
  }
  writes.push(now);
  history[instead ? "replaceState" : "pushState"](null, "", to);
}

function follow(event, changes) {
  if (event.metaKey || event.ctrlKey || event.shiftKey || event.button > 0) return;
  event.preventDefault();
  app.go(changes);
}

// ---- the frame

const parts = {};

function buildFrame() {
  const nav = document.getElementById("nav");
  parts.links = Object.fromEntries(SCREENS.map((screen) => [screen, h("a", { onclick: (e) => follow(e, { screen }) }, NAMES[screen])]));
  const links = parts.links;
  replace(nav, links.runs, links.curves, links.map, links.datapoint, links.time, links.compare, h("p.group", {}, "Data"), links.storage,
    h("p.version", {}, `endoscope ${document.body.dataset.version}`));
  document.querySelector(".logo").addEventListener("click", (event) => follow(event, { screen: "runs" }));

  parts.runName = h("span.name", {});
  parts.runButton = h("button", { "aria-haspopup": "true", "aria-expanded": "false", "aria-label": "Runs to show", onclick: () => openMenu(parts.runList.hidden) }, parts.runName, h("span", { "aria-hidden": "true" }, "▾"));
  parts.runList = h("div.list", { hidden: true, role: "group", "aria-label": "Runs to show" });
  parts.metric = h("select", { "aria-label": "metric", onchange: (event) => app.go({ metric: event.target.value }) });
  parts.epoch = h("input", { type: "range", min: 0, "aria-label": "epoch", oninput: (event) => app.setEpoch(app.current.epochs[Number(event.target.value)].epoch) });
  parts.epochText = h("output", {});
  parts.epochControl = h("div.control", {}, h("span", { "aria-hidden": "true" }, "epoch"), parts.epoch, parts.epochText);
  parts.metricControl = h("div.control", {}, h("span", { "aria-hidden": "true" }, "metric"), parts.metric);
  parts.live = h("span.live", { hidden: true }, "live");
  replace(document.getElementById("controls"),
    h("div.control", {}, h("span", { "aria-hidden": "true" }, "run"), h("div.menu", {}, parts.runButton, parts.runList)),
    parts.metricControl, parts.epochControl, parts.live);
  document.addEventListener("click", (event) => {
    if (!parts.runList.hidden && !event.target.closest(".menu")) openMenu(false);
  });

  parts.notices = document.getElementById("notices");
  parts.theme = h("button.icon", { "aria-label": "light or dark", title: "light or dark (t)", onclick: turnTheme }, "◐");
  parts.help = h("button.icon", { "aria-label": "keyboard help", title: "keyboard (?)", onclick: help }, "?");
  parts.search = h("input", {
    type: "search", inputmode: "numeric", placeholder: "index", "aria-label": "jump to a datapoint by its index", style: { width: "88px" },
    oninput: (event) => event.target.setCustomValidity(""),
    onkeydown: (event) => {
      if (event.key === "Enter") jump(event.target.value);
      if (event.key === "Escape") event.target.blur();
    },
  });
  parts.lost = h("span.lost", { role: "status", hidden: true });
  replace(document.getElementById("tools"), parts.lost, h("span.control.hint", {}, h("kbd", {}, "j"), h("kbd", {}, "k"), "datapoint", h("kbd", {}, "←"), h("kbd", {}, "→"), "epoch"), parts.search, parts.help, parts.theme);
}

function openMenu(open) {
  parts.runList.hidden = !open;
  parts.runButton.setAttribute("aria-expanded", String(open));
  if (open) parts.runList.querySelector("input")?.focus();
}

app.toggleRun = (id, on) => {
  const ids = app.current.ids.filter((one) => one !== id);
  if (on) ids.push(id);
  if (!ids.length) { // at least one run is always shown
    announce("At least one run is always shown: select another one first.");
    return show();
  }
  const order = app.list.runs.map((run) => run.id);
  return app.go({ run: ids.sort((a, b) => order.indexOf(a) - order.indexOf(b)) });
};

function updateFrame() {
  const { current, selection, list } = app;
  for (const screen of SCREENS) {
    const link = parts.links[screen];
    link.setAttribute("href", app.href({ screen }));
    if (screen === selection.screen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${NAMES[selection.screen]} · ${current.runs.map((run) => run.name).join(", ") || "Endoscope"}`;
  parts.runName.textContent = current.runs.length > 1 ? `${current.runs[0].name} + ${current.runs.length - 1}` : current.run ? current.run.name : "none";
  const focused = document.activeElement?.dataset?.run;
  replace(parts.runList, list.runs.map((run) => h("label", {},
    h("input", { type: "checkbox", data: { run: run.id }, checked: current.ids.includes(run.id), onchange: (event) => app.toggleRun(run.id, event.target.checked) }),
    h("span", {}, run.name), h("span.state", {}, run.status))));
  if (focused) parts.runList.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
  const names = current.metrics.map((m) => `${m.name} ${m.label}`).join("\n");
  if (parts.metric.dataset.names !== names) {
    parts.metric.dataset.names = names;
    replace(parts.metric, current.metrics.map((m) => h("option", { value: m.name }, `${m.label} (${better(m.direction)})`)));
  }
  parts.metric.value = current.metric || "";
  parts.metricControl.hidden = !current.metrics.length;
  const at = current.epochs.findIndex((e) => e.epoch === current.epoch);
  parts.epoch.max = String(Math.max(0, current.epochs.length - 1));
  parts.epoch.value = String(Math.max(0, at));
  parts.epoch.hidden = current.epochs.length < 2;
  parts.epoch.setAttribute("aria-valuetext", `epoch ${current.epoch}`);
  parts.epochText.textContent = current.epoch === null ? "–" : current.epoch;
  parts.epochControl.hidden = !current.epochs.length;
  replace(parts.notices, current.absent.map(({ parameter, text }) => h("p.notice", { data: { absent: parameter } }, text)),
    current.absent.length ? h("button.small.quiet", { onclick: () => app.go({}, { replace: true }) }, "Close") : null);
  parts.notices.hidden = !current.absent.length;
  parts.live.hidden = !current.live;
  parts.live.textContent = current.follows ? "live" : "live, paused at this epoch";
}

// ---- screens

function emptyPage() {
  return kind("No runs yet",
    "This folder has no readable run. Training writes one from its first step, and it will appear here.",
    h("p", {}, "To create one in a minute: ", h("code", {}, "endoscope demo"), ", then ", h("code", {}, "endoscope view"), " and its folder."),
    app.list.problems.length ? h("ul.problems", {}, app.list.problems.map((text) => h("li", {}, text))) : null);
}

async function show() {
  const { selection } = app;
  app.current = resolve(selection, app.list.runs);
  updateFrame();
  if (!app.list.runs.length && selection.screen !== "runs") {
    mounted = null;
    main.className = "";
    replace(main, h("h1.unseen", {}, NAMES[selection.screen]), emptyPage());
    main.setAttribute("aria-busy", "false");
    return;
  }
  if (!mounted || mounted.screen !== selection.screen) {
    mounted?.unmount?.();
    mounted = null;
    const screen = selection.screen;
    const module = await import(`./screens/${screen}.js`);
    if (app.selection.screen !== screen) return; // the user chose another one meanwhile
    if (!mounted || mounted.screen !== screen) {
      main.className = screen === "map" ? "fixed" : "";
      replace(main);
      mounted = { screen, ...module.mount(main, app) };
    }
  }
  const now = mounted;
  try {
    await now.update();
  } catch (error) {
    if (now === mounted) announce(error.message);
    throw error;
  } finally {
    main.setAttribute("aria-busy", "false");
    main.dataset.ready = String(Number(main.dataset.ready || 0) + 1);
  }
}
app.emptyPage = emptyPage;
app.redraw = () => show();

async function loadRuns() {
  listed = Date.now();
  app.list = await fresh("/api/runs", { run: app.selection.run.slice(0, MAX_NAMED) });
}

// ---- live updates

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

// Shows or hides the lost connection in the header; returns whether it was shown before.
function connection(error) {
  const before = lost !== null;
  if (!error) lost = null;
  else if (!before) lost = new Date();
  parts.lost.hidden = lost === null;
  if (lost === null) return before;
  const what = error.status === 0 ? "no answer" : `error ${error.status}`;
  const text = `${what} since ${clock.format(lost)}; trying again`;
  if (parts.lost.textContent !== text) parts.lost.textContent = text;
  parts.lost.title = [error.message, error.hint].filter(Boolean).join(" ");
  return before;
}

async function look() {
  const { ids } = app.current;
  const all = app.selection.screen === "runs" || !ids.length || ids.length > MAX_NAMED;
  const of = all ? "all" : ids.join(" ");
  const answer = await fresh("/api/stamp", all ? {} : { run: ids });
  const back = connection(null);
  const changed = stamp !== null && stamp.of === of && stamp.text !== answer.stamp;
  const others = stamp !== null && stamp.of !== of; // the list may be out of date for them
  const stale = others || app.list.left > 0 || Date.now() - listed > (app.selection.screen === "runs" ? LIST_MS : MENU_MS);
  if (changed || back) forget();
  if (changed || back || stale) {
    await loadRuns();
    if (changed || back || app.selection.screen === "runs") await show().catch((error) => announce(error.message));
    else {
      const versions = () => JSON.stringify(app.current.runs.map((run) => run.epochs.map((e) => e.version)));
      const before = versions();
      app.current = resolve(app.selection, app.list.runs);
      updateFrame(); // the menu may have more runs
      if (versions() !== before) show().catch((error) => announce(error.message));
    }
  }
  stamp = { of, text: answer.stamp };
}

async function poll() {
  try {
    await look();
  } catch (error) {
    if (!(error instanceof Trouble)) console.error(error); // a bug of ours
    else if (error.status === 404) await loadRuns().then(show).catch((again) => connection(again)); // a run was removed
    else connection(error);
  } finally {
    setTimeout(poll, document.hidden ? POLL_MS * 5 : POLL_MS);
  }
}

// ---- keyboard and theme

function turnTheme() {
  const dark = document.documentElement.dataset.theme !== "dark";
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  try {
    localStorage.setItem("endoscope-theme", dark ? "dark" : "light");
  } catch (error) {
    announce("This browser cannot store the choice.");
  }
  mounted?.themed?.();
}

function help() {
  const dialog = h("dialog", { "aria-label": "Keyboard" });
  replace(dialog, h("div.head", {}, h("h2", {}, "Keyboard"), h("div.push", {}, h("button", { onclick: () => dialog.close() }, "Close"))),
    h("dl.keys", {}, KEYS.map(([names, text]) => [h("dt", {}, names.map((k) => h("kbd", {}, k))), h("dd", {}, text)])));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

async function step(by) {
  const { indices } = await app.shown();
  if (!indices.length) return;
  const dp = app.selection.dp || indices[0]; // read now: another key press may have changed it
  const at = indices.findIndex((i) => String(i) === String(dp));
  const to = at < 0 ? 0 : Math.min(indices.length - 1, Math.max(0, at + by));
  if (at !== to) await app.go({ dp: String(indices[to]) }, { replace: app.selection.dp !== null });
}

function stepEpoch(by) {
  const { epochs, epoch } = app.current;
  const at = epochs.findIndex((e) => e.epoch === epoch);
  const to = at + by;
  if (to >= 0 && to < epochs.length) return app.setEpoch(epochs[to].epoch);
  return null;
}

async function jump(text) {
  const index = text.trim();
  if (!/^-?\d+$/.test(index)) {
    parts.search.setCustomValidity("An index is an integer."); // the browser shows the message until the text changes
    parts.search.reportValidity();
    return;
  }
  const changes = { dp: String(BigInt(index)) }; // a number would lose the last digits of a large index
  if (["runs", "curves", "storage"].includes(app.selection.screen)) changes.screen = "map";
  parts.search.value = "";
  parts.search.blur();
  await app.go(changes);
}

// Whether the focused element uses a key itself: text fields take letters, sliders and selects take arrows.
function takes(element, key) {
  if (element.type === "range") return key.startsWith("Arrow");
  return ["SELECT", "TEXTAREA"].includes(element.tagName) || (element.tagName === "INPUT" && element.type !== "checkbox");
}

let pointed = false; // whether the last input was a pointer
document.addEventListener("pointerdown", () => (pointed = true), true);
document.addEventListener("keydown", () => (pointed = false), true);
document.addEventListener("change", (event) => {
  if (event.target.tagName === "SELECT" && pointed) event.target.blur(); // so that letters are shortcuts again
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (!parts.runList.hidden) {
      openMenu(false);
      parts.runButton.focus();
    }
    return;
  }
  if (takes(event.target, event.key) || document.querySelector("dialog[open]")) return;
  const act = {
    j: () => step(1), k: () => step(-1), ArrowRight: () => stepEpoch(1), ArrowLeft: () => stepEpoch(-1),
    f: () => app.go({ only: app.selection.only === "failures" ? null : "failures" }),
    "/": () => parts.search.focus(), "?": help, t: turnTheme,
  }[event.key];
  if (!act) return;
  event.preventDefault();
  Promise.resolve(act()).catch((error) => announce(error.message));
});

window.addEventListener("popstate", () => {
  if (pending) clearTimeout(pending.timer);
  pending = null;
  app.selection = parse(location);
  show().catch((error) => announce(error.message));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
  let stored = null;
  try {
    stored = localStorage.getItem("endoscope-theme");
  } catch (error) {
    stored = null;
  }
  if (stored) return;
  document.documentElement.dataset.theme = event.matches ? "dark" : "light";
  mounted?.themed?.();
});

async function start() {
  buildFrame();
  try {
    await loadRuns();
    await show();
  } catch (error) {
    if (!app.current) app.current = resolve(app.selection, []);
    if (!mounted) replace(main, failure(error));
    if (!mounted && error instanceof Trouble) connection(error);
    if (!(error instanceof Trouble)) console.error(error); // a bug of ours
    main.setAttribute("aria-busy", "false");
  }
  poll();
}

start();
