// The runs that are shown, as buttons: of which one the datapoint is. Hidden while there is only one.

import { h, replace } from "./dom.js";

export function runTabs(app) {
  const element = h("div.tabs", { role: "group", "aria-label": "run of the datapoint", hidden: true });
  const show = (run) => {
    const { runs } = app.current;
    element.hidden = runs.length < 2;
    const held = element.contains(document.activeElement) ? document.activeElement.dataset.run : null;
    replace(element, runs.map((one) => h("button", { "aria-pressed": String(one === run), data: { run: one.id }, onclick: () => app.go({ on: one.id }, { replace: true }) }, one.name)));
    if (held) element.querySelector(`[data-run="${CSS.escape(held)}"]`)?.focus();
  };
  return { element, show };
}
