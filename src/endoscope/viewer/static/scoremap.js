// The score map: one cell per datapoint on a canvas, written pixel by pixel, so that 100,000 cells take milliseconds.
// NaN is hatched, infinity has a colour and a dot, a missing score is hollow, a failure has a corner in the text colour
// (the smallest cells are all corner). The selected cell is outlined by an element on top.

import { h } from "./dom.js";
import { number } from "./format.js";

const STEPS = 256;
const LARGEST = 26;

function rgb(text) {
  const hex = text.trim().replace("#", "");
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const pixel = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;

// The colours of the current theme: a ramp from good to bad, and the special cells.
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const stops = [0, 1, 2, 3].map((i) => rgb(style.getPropertyValue(`--map-${i}`)));
  const ramp = new Uint32Array(STEPS);
  for (let i = 0; i < STEPS; i += 1) {
    const at = (i / (STEPS - 1)) * (stops.length - 1);
    const left = Math.min(Math.floor(at), stops.length - 2);
    ramp[i] = pixel(stops[left].map((c, k) => Math.round(c + (stops[left + 1][k] - c) * (at - left))));
  }
  const one = (name) => pixel(rgb(style.getPropertyValue(name)));
  return { ramp, nan: one("--map-nan"), inf: one("--map-inf"), missing: one("--map-missing"), ground: one("--panel"), ink: one("--ink") };
}

// The number of columns and the cell size that fill a width and come close to a height.
export function layout(n, width, height) {
  const fit = Math.floor(Math.sqrt((width * height) / Math.max(n, 1)));
  const size = Math.max(2, Math.min(LARGEST, fit));
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, rows: Math.ceil(n / columns), gap: size >= 8 ? 2 : size >= 4 ? 1 : 0 };
}

// The size of the corner that marks a failure: a third of a large cell, half of a small one, at least one pixel.
const cornerOf = (inner) => (inner >= 7 ? Math.max(3, Math.floor(inner / 3)) : Math.ceil(inner / 2));

export function paint(canvas, plan, data, colours, scale) {
  const size = Math.round(plan.size * scale);
  const gap = plan.gap ? Math.max(1, Math.round(plan.gap * scale)) : 0;
  const width = plan.columns * size;
  const height = plan.rows * size;
  canvas.width = width;
  canvas.height = height;
  canvas.style.width = `${plan.columns * plan.size}px`;
  canvas.style.height = `${plan.rows * plan.size}px`;
  if (!width || !height) return;
  const context = canvas.getContext("2d", { alpha: false });
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer).fill(colours.ground);
  const inner = size - gap;
  const [low, high] = data.range ? data.range.map(number) : [0, 0];
  const spread = high - low || 1;
  const corner = cornerOf(inner);
  const mark = (left, top) => {
    for (let y = 0; y < corner; y += 1) {
      const end = (top + y) * width + left + inner;
      pixels.fill(colours.ink, end - corner + y, end);
    }
  };
  const worstLow = data.direction === "higher";
  for (let i = 0; i < data.values.length; i += 1) {
    const raw = data.values[i];
    const left = (i % plan.columns) * size;
    const top = Math.floor(i / plan.columns) * size;
    if (raw === null) {
      for (let y = 0; y < inner; y += 1)
        for (let x = 0; x < inner; x += 1)
          if (inner < 4 ? (x + y) % 2 : x === 0 || y === 0 || x === inner - 1 || y === inner - 1)
            pixels[(top + y) * width + left + x] = colours.missing;
      continue;
    }
    const value = typeof raw === "number" ? raw : Number(raw);
    if (Number.isNaN(value)) {
      for (let y = 0; y < inner; y += 1)
        for (let x = 0; x < inner; x += 1)
          if ((x + y) % 4 < 2 || inner < 4) pixels[(top + y) * width + left + x] = colours.nan;
      if (data.fails[i]) mark(left, top);
      continue;
    }
    let t = Math.min(1, Math.max(0, (value - low) / spread));
    if (worstLow) t = 1 - t;
    const colour = Number.isFinite(value) ? colours.ramp[Math.round(t * (STEPS - 1))] : colours.inf;
    for (let y = 0; y < inner; y += 1) {
      const from = (top + y) * width + left;
      pixels.fill(colour, from, from + inner);
    }
    if (colour === colours.inf && inner >= 5) {
      const from = Math.floor((inner - 2) / 2);
      for (let y = from; y < from + 2; y += 1) pixels.fill(colours.ground, (top + y) * width + left + from, (top + y) * width + left + from + 2);
    }
    if (data.fails[i]) mark(left, top);
  }
  context.putImageData(image, 0, 0);
}

// A map with its own canvas. `draw` shows data, `select` outlines a cell; the callbacks get positions.
export class ScoreMap {
  constructor({ label, onpick, onhover }) {
    this.canvas = h("canvas", { role: "img", "aria-label": label, tabindex: "0" });
    this.on = h("div.cell-on", { hidden: true });
    this.over = h("div.cell-over", { hidden: true });
    this.element = h("div.mapbox", {}, this.canvas, this.over, this.on);
    this.plan = null;
    this.count = 0;
    this.selected = -1;
    this.canvas.addEventListener("click", (event) => {
      const i = this.at(event);
      if (i >= 0) onpick(i);
    });
    this.canvas.addEventListener("mousemove", (event) => onhover(this.at(event), event, this));
    this.canvas.addEventListener("mouseleave", (event) => onhover(-1, event, this));
  }

  at(event) {
    if (!this.plan) return -1;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.plan.size);
    const row = Math.floor((event.clientY - box.top) / this.plan.size);
    if (column < 0 || column >= this.plan.columns || row < 0) return -1;
    const i = row * this.plan.columns + column;
    return i < this.count ? i : -1;
  }

  draw(data, width, height, label) {
    this.count = data.values.length;
    this.plan = layout(this.count, width, height);
    this.canvas.setAttribute("aria-label", label);
    paint(this.canvas, this.plan, data, palette(), Math.max(1, Math.round(window.devicePixelRatio || 1)));
    this.canvas.dataset.cells = String(this.count);
    this.place(this.on, this.selected);
    this.over.hidden = true;
  }

  place(element, i) {
    element.hidden = i < 0 || i >= this.count || !this.plan;
    if (element.hidden) return;
    const { size, columns, gap } = this.plan;
    element.style.left = `${(i % columns) * size}px`;
    element.style.top = `${Math.floor(i / columns) * size}px`;
    element.style.width = `${size - gap}px`;
    element.style.height = `${size - gap}px`;
  }

  select(i) {
    this.selected = i;
    this.place(this.on, i);
  }

  hover(i) {
    this.place(this.over, i);
  }
}
