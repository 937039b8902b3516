// Lines and histograms as small SVG drawings in the theme's colours.

import { h, replace, s } from "./dom.js";
import { number, show } from "./format.js";

const DASHES = ["", "6 3", "2 3", "8 3 2 3", "1 3", "10 4"];
export const runColour = (i) => `var(--run-${i % 6})`;
export const runDash = (i) => DASHES[i % DASHES.length];

export function ticks(low, high, count = 5) {
  if (!(high > low)) return [low];
  const raw = (high - low) / count;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * base).find((k) => k >= raw) || raw;
  const values = [];
  const first = Math.ceil(low / step - 1e-9);
  for (let k = 0; k <= 2 * count && (first + k) * step <= high + step * 1e-6; k += 1) values.push((first + k) * step);
  return values;
}

function logTicks(low, high) {
  const values = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1)
    for (const k of [1, 2, 5]) if (k * 10 ** e >= low * 0.999 && k * 10 ** e <= high * 1.001) values.push(k * 10 ** e);
  if (values.length < 2) return ticks(low, high, 3);
  return values.length > 7 ? values.filter((x) => Math.abs(Math.log10(x) % 1) < 1e-9) : values;
}

// The minimum and maximum of finite numbers.
export const extent = (values) => values.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);

// series: [{name, colour, dash, x: [...], y: [...]}]; x are numbers. `span` are values that the axis must include.
// Redraws when the width of its box changes.
export function lineChart({ label, series, height = 240, now = null, log = false, xname = "epoch", onpick = null, names = null, span = null }) {
  const box = h("div.chart", { style: { "min-height": `${height}px` } });
  const tip = h("div.tip", { hidden: true });
  box.append(tip);
  const finite = series.flatMap((line) => line.y.map(number)).filter((y) => y !== null && Number.isFinite(y) && (!log || y > 0));
  const xs = [...new Set(series.flatMap((line) => line.x))].sort((a, b) => a - b);
  const pad = { left: 48, right: 12, top: 8, bottom: 24 };

  function draw() {
    const width = box.clientWidth || 400;
    box.querySelector("svg")?.remove();
    if (!xs.length || !finite.length) {
      const message = h("p.soft", {}, xs.length ? "No finite value to draw." : "No value yet.");
      replace(box, message, tip);
      return;
    }
    let [low, high] = extent(finite.concat(span || []));
    if (!(high - low > Math.max(Math.abs(low), Math.abs(high)) * 1e-9)) { // equal except for rounding
      low -= Math.abs(low) * 0.1 || 0.5;
      high += Math.abs(high) * 0.1 || 0.5;
    }
    const [x0, x1] = xs.length > 1 ? [xs[0], xs.at(-1)] : [xs[0] - 0.5, xs[0] + 0.5];
    const f = log ? Math.log10 : (v) => v;
    if (log) low = Math.max(low, high * 1e-8);
    const margin = (f(high) - f(low)) * 0.06;
    const [f0, f1] = [f(low) - margin, f(high) + margin];
    const px = (x) => pad.left + ((x - x0) / (x1 - x0)) * (width - pad.left - pad.right);
    const py = (y) => height - pad.bottom - ((f(y) - f0) / (f1 - f0)) * (height - pad.top - pad.bottom);
    const svg = s("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const marks = log ? logTicks(low, high) : ticks(low, high);
    const decimals = marks.length > 1 && !log ? Math.max(0, -Math.floor(Math.log10(marks[1] - marks[0]) + 1e-9)) : null;
    for (const y of marks) {
      const text = decimals === null || decimals > 4 || Math.abs(y) >= 1e5 ? show(y, 2) : y.toFixed(decimals).replace("-", "−");
      svg.append(s("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: py(y), y2: py(y) }));
      svg.append(s("text", { x: pad.left - 8, y: py(y) + 4, "text-anchor": "end" }, text));
    }
    const count = Math.min(8, Math.floor(width / 60));
    const shown = xs.length <= count ? xs : ticks(x0, x1, count).filter((t) => Number.isInteger(t) && t >= x0 && t <= x1);
    for (const x of shown)
      svg.append(s("text", { x: px(x), y: height - 6, "text-anchor": "middle" }, names ? names(x) : x));
    svg.append(s("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }));
    if (now !== null && now >= x0 && now <= x1)
      svg.append(s("line", { class: "now", x1: px(now), x2: px(now), y1: pad.top, y2: height - pad.bottom }));
    const hover = s("line", { class: "hover", y1: pad.top, y2: height - pad.bottom, visibility: "hidden" });
    svg.append(hover);
    for (const line of series) {
      let path = "";
      let pen = false;
      line.x.forEach((x, i) => {
        const y = number(line.y[i]);
        if (y === null || !Number.isFinite(y) || (log && y <= 0)) {
          pen = false;
          if (y !== null) svg.append(s("text", { x: px(x), y: height - pad.bottom - 4, "text-anchor": "middle" }, Number.isFinite(y) ? "≤0" : show(y)));
          return;
        }
        path += `${pen ? "L" : "M"}${px(x).toFixed(1)} ${py(y).toFixed(1)}`;
        pen = true;
      });
      svg.append(s("path", { class: "line", d: path, "stroke-dasharray": line.dash || null, style: { stroke: line.colour } }));
      if (line.x.length <= 60)
        line.x.forEach((x, i) => {
          const y = number(line.y[i]);
          if (Number.isFinite(y) && y !== null && (!log || y > 0))
            svg.append(s("circle", { cx: px(x), cy: py(y), r: x === now ? 4 : 2, style: { fill: line.colour } }));
        });
    }
    const nearest = (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      return xs.reduce((best, x) => (Math.abs(px(x) - at) < Math.abs(px(best) - at) ? x : best), xs[0]);
    };
    const hit = s("rect", { class: "hit", x: pad.left - 8, y: 0, width: Math.max(1, width - pad.left - pad.right + 16), height });
    hit.addEventListener("mousemove", (event) => {
      const x = nearest(event);
      hover.setAttribute("x1", px(x));
      hover.setAttribute("x2", px(x));
      hover.setAttribute("visibility", "visible");
      const lines = series.filter((line) => line.x.includes(x)).map((line) => `${line.name}  ${show(line.y[line.x.indexOf(x)], 4)}`);
      tip.textContent = [`${xname} ${names ? names(x) : x}`, ...lines].join("\n");
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY + 14}px`;
    });
    hit.addEventListener("mouseleave", () => {
      tip.hidden = true;
      hover.setAttribute("visibility", "hidden");
    });
    if (onpick) hit.addEventListener("click", (event) => onpick(nearest(event)));
    svg.append(hit);
    box.prepend(svg);
  }

  let drawn = 0;
  new ResizeObserver(() => {
    if (box.clientWidth !== drawn) {
      drawn = box.clientWidth;
      draw();
    }
  }).observe(box);
  return box;
}

export function histogram({ label, edges, counts, height = 120, width = 320 }) {
  if (!counts.length) return h("p.soft", {}, "No value is finite.");
  const pad = { left: 8, right: 8, top: 4, bottom: 20 };
  const high = Math.max(1, ...counts);
  const x0 = number(edges[0]);
  const x1 = number(edges.at(-1));
  const px = (x) => pad.left + ((x - x0) / (x1 - x0 || 1)) * (width - pad.left - pad.right);
  const svg = s("svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  counts.forEach((c, i) => {
    const tall = (c / high) * (height - pad.top - pad.bottom);
    const left = px(number(edges[i]));
    const wide = Math.max(0.5, px(number(edges[i + 1])) - left - 0.75);
    svg.append(s("rect", { class: "bars", x: left, y: height - pad.bottom - tall, width: wide, height: tall },
      s("title", {}, `${show(edges[i])} to ${show(edges[i + 1])}: ${c}`)));
  });
  svg.append(s("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }));
  svg.append(s("text", { x: pad.left, y: height - 4 }, show(x0)));
  svg.append(s("text", { x: width - pad.right, y: height - 4, "text-anchor": "end" }, show(x1)));
  return h("div.chart", { style: { "min-height": `${height}px`, width: `${width}px`, "max-width": "100%" } }, svg);
}
