// The runs that are shown, as buttons: of which one the datapoint is. Hidden while there is only one; many are a list.

import { h, replace } from "./dom.js";

const MOST_BUTTONS = 3;

export function runTabs(app) {
  const list = h("select", { "aria-label": "run of the datapoint", onchange: (event) => app.go({ on: event.target.value }, { replace: true }) });
  const element = h("div.tabs", { role: "group", "aria-label": "run of the datapoint", hidden: true });
  const show = (run) => {
    const { runs } = app.current;
    element.hidden = runs.length < 2;
    element.classList.toggle("tabs", runs.length <= MOST_BUTTONS);
    if (runs.length > MOST_BUTTONS) {
      replace(list, runs.map((one) => h("option", { value: one.id }, one.name)));
      list.value = run.id;
      if (!list.isConnected || list.parentElement !== element) replace(element, list);
      return;
    }
    const held = element.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    replace(element, runs.map((one) => h("button", { title: one.name, "aria-pressed": String(one === run), data: { run: one.id }, onclick: () => app.go({ on: one.id }, { replace: true }) }, one.name)));
    if (held) element.querySelector(`[data-run="${CSS.escape(held)}"]`)?.focus();
  };
  return { element, show };
}
