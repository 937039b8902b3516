// Buttons to choose the run whose datapoint is shown. A list for many runs, hidden for one.

import { h, replace } from "./dom.js";

const MAX_BUTTONS = 3;

export function runTabs(app) {
  const list = h("select", { "aria-label": "run of the datapoint", onchange: (event) => app.go({ on: event.target.value }, { replace: true }) });
  const element = h("div.tabs", { role: "group", "aria-label": "run of the datapoint", hidden: true });
  const show = (run) => {
    const { runs } = app.current;
    element.hidden = runs.length < 2;
    element.classList.toggle("tabs", runs.length <= MAX_BUTTONS);
    if (runs.length > MAX_BUTTONS) {
      replace(list, runs.map((one) => h("option", { value: one.id }, one.name)));
      list.value = run.id;
      if (!list.isConnected || list.parentElement !== element) replace(element, list);
      return;
    }
    const focused = element.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    replace(element, runs.map((one) => h("button", { title: one.name, "aria-pressed": String(one === run), data: { run: one.id }, onclick: () => app.go({ on: one.id }, { replace: true }) }, one.name)));
    if (focused) element.querySelector(`[data-run="${CSS.escape(focused)}"]`)?.focus();
  };
  return { element, show };
}
