// Draws one captured value (an Item of docs/viewer-api.md) with its statistics and its Python snippet.

import { announce, h, replace } from "./dom.js";
import { extent, histogram, lineChart, runColour, runDash } from "./charts.js";
import { count, exact, number, shape, show } from "./format.js";

const WIDE = new Set(["channels", "table", "line", "attention", "text", "tokens"]);

// The address of a picture with more parameters; other addresses are refused.
function picture(src, parameters = {}) {
  if (typeof src !== "string" || !src.startsWith("/api/image")) return "";
  const url = new URL(src, location.origin);
  for (const [name, value] of Object.entries(parameters)) url.searchParams.set(name, value);
  return url.pathname + url.search;
}

const pictureSide = () => (window.innerWidth > 1900 ? 208 : 144);

// Small pictures are enlarged by an integer factor, so that pixels stay square.
function fitted(width, height, side) {
  const longest = Math.max(width, height, 1);
  if (longest >= side) return { width: Math.round((width * side) / longest), height: Math.round((height * side) / longest), pixels: false };
  const factor = Math.max(1, Math.floor(side / longest));
  return { width: width * factor, height: height * factor, pixels: factor > 1 };
}

// `factor`: how much the server has already enlarged it.
function img(src, width, height, alt, side, factor = 1) {
  const size = fitted(width / factor, height / factor, side);
  return h("img", { src: picture(src), width: size.width, height: size.height, alt, class: size.pixels ? "pixels" : null, decoding: "async", loading: "lazy" });
}

function ofText(body, one) {
  if (body.shown === undefined || body.of === undefined || body.shown === null || body.of === null) return null;
  return `${count(body.shown)} of ${count(body.of)} ${one}`;
}

const gradient = (colours) => ({ background: `linear-gradient(90deg, ${colours.join(", ")})` });
const bar = (colours, name = "span.bar") => h(name, { "aria-hidden": "true", style: gradient(colours) });

function oddColours(body, stats) {
  const one = (colour, name, n) => (colour && n !== 0 ? h("span", {}, h("i.swatch", { style: { background: colour } }), name) : null);
  return [one(body.nan_colour, "NaN", stats ? stats.nan : null), one(body.inf_colour, "Inf", stats ? stats.inf : null)];
}

// The scale of a picture: its range and colours, the colours of NaN and infinities if present, and a note if shared.
export function scale(body, stats = null, shared = "") {
  if (!body.range) return null;
  const nothing = stats && stats.count > 0 && stats.non_finite === stats.count;
  const ramp = nothing ? h("span.faint", {}, "no finite value")
    : h("span.ramp", {}, show(body.range[0]), Array.isArray(body.legend) ? bar(body.legend) : h("span", {}, "to"), show(body.range[1]));
  return h("span.scale", {}, ramp, oddColours(body, stats), body.shared && shared && !nothing ? h("span.faint", {}, shared) : null);
}

// The scale of a difference: zero in the middle, the largest difference at both ends.
function differenceScale(difference) {
  const bound = difference.range ? number(difference.range[1]) : null;
  const middle = Math.floor(difference.legend.length / 2);
  const ramp = bound === null ? h("span.faint", {}, "no finite difference") : bound === 0 ? h("span.faint", {}, "no difference: 0 everywhere")
    : h("span.ramp", {}, show(-bound), bar(difference.legend.slice(0, middle + 1), "span.bar.half"), "0", bar(difference.legend.slice(middle), "span.bar.half"), `+${show(bound)}`);
  return h("span.scale.difference", {}, ramp, oddColours(difference, null), difference.note ? h("span.faint", {}, difference.note) : null);
}

// The picture of a difference, laid out like the item `like`, with its scale. `difference` has src and scale.
export function drawDifference(like, difference, { side }) {
  const { width, height } = sheetSize(like.body);
  return [img(difference.src, width, height, `difference of ${like.name}`, side, like.body.factor), difference.scale ? differenceScale(difference.scale) : h("span.scale.faint", {}, "coloured where the classes differ")];
}

// The server's note about what is left out or changed; always shown.
function note(item) {
  return item.body && item.body.note ? h("p.note", {}, item.body.note) : null;
}

// Whether the numbers are class indices, which have no mean.
export const areClasses = (item) => ["mask", "tokens"].includes(item.renderer);

// The lines below a small drawing: classes or scale, notes, and statistics.
export function below(item, shared) {
  if (areClasses(item)) return [item.renderer === "mask" ? classList(item.body) : null, note(item)];
  return [scale(item.body, item.stats, shared), note(item), statsLine(item)];
}

function zoom(item, index, total, what) {
  const body = item.body;
  const image = h("img", { alt: "" });
  const title = h("h2", {});
  const dialog = h("dialog", { "aria-label": `${what} of ${item.name}` });
  let at = index;
  const turn = (to) => {
    at = Math.min(total - 1, Math.max(0, to));
    title.textContent = `${item.name}, ${what} ${at} (0 to ${total - 1})`;
    image.alt = title.textContent;
    image.src = picture(body.src, { zoom: at });
    back.disabled = at === 0;
    on.disabled = at === total - 1;
  };
  const back = h("button", { onclick: () => turn(at - 1) }, "← previous");
  const on = h("button", { onclick: () => turn(at + 1) }, "next →");
  const [tw, th] = body.tile || [64, 64];
  const room = Math.min(window.innerWidth, window.innerHeight) - 280;
  const size = fitted(tw, th, Math.min(960, Math.max(480, room)));
  image.width = size.width;
  image.height = size.height;
  replace(dialog, h("div.head", {}, title, h("div.push", {}, back, on, h("button", { onclick: () => dialog.close() }, "Close"))),
    body.queries ? withTokens(image, body) : image,
    h("p.sub", { style: { "margin-top": "8px" } }, scale(body, item.stats)));
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") turn(at - 1);
    else if (event.key === "ArrowRight") turn(at + 1);
    event.stopPropagation();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  turn(at);
  dialog.showModal();
}

// An attention head with its tokens at the rows and columns if there is room. The pair under the mouse is shown below.
function withTokens(image, { tokens, of_tokens, queries, keys }) {
  const text = (count) => (tokens && tokens.length === of_tokens && of_tokens === count ? tokens : null);
  const labels = (kind, count, pixels) => {
    const pitch = pixels / count;
    const texts = pitch >= 7 ? text(count) : null;
    return h(`div.${kind}`, { "aria-hidden": "true", style: { "font-size": `${Math.min(11, pitch)}px` } }, (texts || []).map((one) => h("span", { title: one }, visible(one))));
  };
  const one = (kind, list, at) => `${kind} ${at}${list ? ` “${list[at]}”` : ""}`;
  const rest = "Each row is a query, each column a key that it attends to.";
  const pointed = h("p.sub.mono", {}, rest);
  image.addEventListener("mousemove", (event) => {
    const box = image.getBoundingClientRect();
    const row = Math.min(queries - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * queries)));
    const column = Math.min(keys - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * keys)));
    pointed.textContent = `${one("query", text(queries), row)} → ${one("key", text(keys), column)}`;
  });
  image.addEventListener("mouseleave", () => { pointed.textContent = rest; });
  return [h("div.axes", {}, labels("columns", keys, image.width), labels("rows", queries, image.height), image), pointed];
}

// The size of a sheet of tiles with gaps.
export function sheetSize(body) {
  if (body.width && body.height) return { width: body.width, height: body.height };
  const [tw, th] = Array.isArray(body.tile) ? body.tile : [body.tile || 64, body.tile || 64];
  const gap = body.gap || 0;
  const columns = body.columns || body.shown || body.heads || 1;
  const rows = body.rows || 1;
  return { width: columns * (tw + gap) - gap, height: rows * (th + gap) - gap };
}

// Many tiles in one picture, in pages; a click enlarges one.
function sheet(item, { small, alt, side }, what) {
  const body = item.body;
  const { width, height } = sheetSize(body);
  if (small) return img(body.src, width, height, alt, side || 240);
  const image = h("img", { src: picture(body.src), width, height, alt });
  let page = 0;
  const text = h("span.mono", {}, ofText(body, what));
  const pages = Math.ceil(body.of / Math.max(1, body.shown));
  const turn = (to) => {
    page = to;
    image.src = picture(body.src, { page });
    const from = page * body.shown;
    const until = Math.min(body.of, from + body.shown);
    image.height = sheetSize({ ...body, rows: Math.ceil((until - from) / body.columns) }).height;
    text.textContent = `${what} ${from} to ${until - 1} of ${body.of}`;
    back.disabled = page === 0;
    on.disabled = page === pages - 1;
    announce(text.textContent);
  };
  const back = h("button.small.icon", { "aria-label": `previous ${what}`, disabled: true, onclick: () => turn(page - 1) }, "←");
  const on = h("button.small.icon", { "aria-label": `next ${what}`, onclick: () => turn(page + 1) }, "→");
  const pick = (event) => {
    const box = image.getBoundingClientRect();
    const keyboard = event.clientX === 0 && event.clientY === 0;
    const columns = body.columns;
    const rows = Math.ceil(Math.min(body.shown, body.of - page * body.shown) / columns);
    const column = keyboard ? 0 : Math.floor(((event.clientX - box.left) / box.width) * columns);
    const row = keyboard ? 0 : Math.floor(((event.clientY - box.top) / box.height) * rows);
    const index = page * body.shown + row * columns + column;
    if (index < body.of) zoom(item, index, body.of, what.slice(0, -1));
  };
  const sprite = h("div.sprite", {}, image, h("button.over", { "aria-label": `enlarge a ${what.slice(0, -1)} of ${item.name}`, onclick: pick }));
  if (pages > 1) return [h("div.under", {}, back, on, text), sprite, h("div.under", {}, scale(body, item.stats))]; // above the picture, because the last page is lower
  return [sprite, h("div.under", {}, text, scale(body, item.stats))];
}

const channels = (item, how) => sheet(item, how, "channels");

function attention(item, how) {
  const drawn = sheet(item, how, "heads");
  return how.small || !item.body.tokens ? drawn : [...drawn, words(item.body.tokens, "tokens")];
}

// A picture, and the same picture over the input if the input is an image with the same proportions.
function overInput(item, { alt, side }) {
  const body = item.body;
  const alone = img(body.src, body.width, body.height, alt, side, body.factor);
  if (!body.overlay) return alone;
  const over = img(body.overlay, body.width, body.height, `${alt}, over the input`, side, body.factor);
  return [h("figure", {}, alone, h("figcaption", {}, "alone")), h("figure", {}, over, h("figcaption", {}, "over the input"))];
}

function mask(item, { small, alt, side }) {
  const body = item.body;
  if (small) return img(body.src, body.width, body.height, alt, side || 176, body.factor);
  return h("div.pair", {}, overInput(item, { alt, side: side || 176 }), classList(body));
}

function classList(body) {
  return h("div.classes", {}, (body.classes || []).map((c) =>
    h("span", {}, h("i.swatch", { style: { background: c.colour } }), c.name ?? c.index, h("span.faint.mono", {}, ` ${show(number(c.share) * 100)} %`))));
}

function heatmap(item, { small, alt, side }) {
  const body = item.body;
  if (small) return img(body.src, body.width, body.height, alt, side || pictureSide(), body.factor);
  return [
    h("div.pair", {}, overInput(item, { alt, side: side || pictureSide() })),
    h("div.under", {}, scale(body, item.stats)),
    body.tokens ? words(body.tokens, "rows, from the top") : null,
  ];
}

// Makes line breaks and tabs visible.
const visible = (token) => String(token ?? "").replaceAll("\n", "↵").replaceAll("\t", "⇥");

function words(list, label) {
  return h("div.tokens", { role: "list", "aria-label": label }, list.map((one) => h("span", { role: "listitem" }, typeof one === "string" ? visible(one) : one)));
}

// Token ids, each with its text if known.
function tokens(item) {
  const { values, tokens: texts, shown, of } = item.body;
  const each = values.map((id, i) => (texts ? [visible(texts[i]), h("small.faint", {}, ` ${id}`)] : String(id)));
  return [words(each, `ids of ${item.name}`), shown < of ? h("div.under", {}, h("span.mono", {}, ofText(item.body, "values"))) : null];
}

function line(item, { small, side, span }) {
  const body = item.body;
  const series = body.series.map((one, i) => ({
    name: one.name || item.name, colour: runColour(i), dash: runDash(i), x: one.values.map((_, k) => k), y: one.values,
  }));
  const chart = lineChart({ label: `${item.name} as a line`, series, height: small ? 120 : 160, xname: "at", span });
  chart.style.width = small ? `min(100%, ${side || 240}px)` : "min(100%, 560px)";
  const shown = small && body.shown === body.of ? null : h("span.mono", {}, ofText(body, "values"));
  return [chart, shown || series.length > 1 ? h("div.under", {}, shown, series.length > 1 ? keys(series) : null) : null];
}

// The common range of items drawn as lines, so that they share an axis; null for other items.
export function lineSpan(...items) {
  if (!items.length || items.some((item) => !item || item.renderer !== "line")) return null;
  const all = items.flatMap((item) => item.body.series.flatMap((one) => one.values.map(number))).filter((y) => y !== null && Number.isFinite(y));
  return all.length ? extent(all) : null;
}

// The difference of two lines of the same length, as a line; null if there is none.
export function drawLineDifference(left, right, { side }) {
  if (!lineSpan(left, right) || left.body.series.length !== right.body.series.length) return null;
  const series = [];
  for (const [i, one] of left.body.series.entries()) {
    const other = right.body.series[i];
    if (one.values.length !== other.values.length || one.name !== other.name) return null;
    const y = one.values.map((v, k) => (number(v) === null || number(other.values[k]) === null ? null : number(v) - number(other.values[k])));
    series.push({ name: one.name || left.name, colour: runColour(i), dash: runDash(i), x: y.map((_, k) => k), y });
  }
  const chart = lineChart({ label: `difference of ${left.name}, left minus right`, series, height: 120, xname: "at", span: [0] });
  chart.style.width = `min(100%, ${side}px)`;
  return chart;
}

export function keys(series) {
  return series.map((one) => h("span", {}, h("i.keyline", { style: { color: one.colour, "border-top-style": !one.dash ? "solid" : one.dash.startsWith("2") ? "dotted" : "dashed" } }), one.name));
}

// A number, or text for a non-finite one.
export function scalarText(value, digits) {
  return typeof value === "number" || /^-?(NaN|Infinity)$/.test(value) ? exact(value, digits) : String(value ?? "–");
}

// The difference of two numbers; null for other items.
export function drawScalarDifference(left, right) {
  const both = [left, right].map((item) => (item && item.renderer === "scalar" && typeof item.body.value === "number" ? item.body.value : null));
  return both.includes(null) ? null : h("div.scalar", {}, exact(both[0] - both[1], 5));
}

function cellOf(value, right) {
  const isNumber = typeof value === "number";
  return h(right ? "td.num" : isNumber ? "td.mono" : "td", { title: isNumber && !Number.isInteger(value) ? String(value) : null }, right || isNumber ? exact(value, 4) : value ?? "–");
}

function tableOf(item) {
  const body = item.body;
  const same = (i) => i > 0 && body.columns[i] === "name" && body.rows.every((row) => row[i] === null || String(row[i]) === String(row[i - 1]));
  const columns = body.columns.map((_, i) => i).filter((i) => !same(i)); // omit names that only repeat the class
  const numeric = body.columns.map((_, i) => body.rows.length > 0 && body.rows.every((row) => row[i] === null || typeof row[i] === "number" || /^-?(NaN|Infinity)$/.test(row[i])));
  return [
    h("div.scroll", { tabindex: body.rows.length > 10 ? "0" : null }, h("table", { "aria-label": item.name },
      h("thead", {}, h("tr", {}, columns.map((i) => h(numeric[i] ? "th.num" : "th", { scope: "col" }, body.columns[i])))),
      h("tbody", {}, body.rows.map((row) => h("tr", {}, columns.map((i) => cellOf(row[i], numeric[i]))))))),
    body.of > body.shown ? h("div.under", {}, h("span.mono", {}, ofText(body, "rows"))) : null,
  ];
}

// A table of classes with its rows in the order of another table; other items unchanged.
export function alignedTable(item, like) {
  if (!item || !like || item.renderer !== "table" || like.renderer !== "table" || item.body.columns[0] !== "class") return item;
  if (item.body.columns.join("\n") !== like.body.columns.join("\n")) return item;
  const places = new Map(like.body.rows.map((row, i) => [row[0], i]));
  const place = (row) => places.get(row[0]) ?? Infinity;
  const rows = [...item.body.rows].sort((a, b) => (place(a) === place(b) ? 0 : place(a) - place(b)));
  return { ...item, body: { ...item.body, rows } };
}

// The difference of two tables of classes, left minus right; null for other items.
export function drawTableDifference(left, right) {
  if (!left || !right || left.renderer !== "table" || right.renderer !== "table" || left.body.columns[0] !== "class") return null;
  const { columns } = left.body;
  if (columns.join("\n") !== right.body.columns.join("\n")) return null;
  const others = new Map(right.body.rows.map((row) => [row[0], row]));
  const numeric = columns.map((_, i) => i).filter((i) => i > 0 && left.body.rows.some((row) => typeof row[i] === "number"));
  const rows = left.body.rows.map((row) => {
    const other = others.get(row[0]);
    return [row[0], ...numeric.map((i) => (other && number(row[i]) !== null && number(other[i]) !== null ? number(row[i]) - number(other[i]) : null))];
  });
  const body = { columns: ["class", ...numeric.map((i) => `Δ ${columns[i]}`)], rows, shown: rows.length, of: rows.length };
  return tableOf({ ...left, name: `difference of ${left.name}, left minus right`, body });
}

const DRAW = {
  image: (item, how) => [
    img(item.body.src, item.body.width, item.body.height, how.alt, how.side || pictureSide(), item.body.factor),
  ],
  channels, attention, mask, heatmap, line, tokens,
  histogram: (item, how) => histogram({ label: `histogram of ${item.name}`, edges: item.body.edges, counts: item.body.counts, width: how.small ? 220 : 320, height: how.small ? 96 : 120 }),
  table: tableOf,
  text: (item) => [h("pre.value", {}, item.body.text), item.body.of > item.body.shown ? h("div.under", {}, h("span.mono", {}, ofText(item.body, "characters"))) : null],
  scalar: (item) => h(typeof item.body.value === "number" ? "div.scalar" : "div.scalar.words", {}, scalarText(item.body.value, 5),
    item.body.name && item.body.name !== String(item.body.value) ? h("small", {}, item.body.name) : null),
  problem: (item) => h("p.bad", {}, item.body.message),
};

// The value alone. `small` omits its surroundings; `side` is the longest side of a picture, `span` the range that the
// axis of a line must include.
export function drawBody(item, { small = false, side = null, of = null, span = null } = {}) {
  const alt = [item.name, item.shape ? shape(item.shape) : null, of].filter(Boolean).join(", ");
  const draw = DRAW[item.renderer];
  try {
    if (draw) return draw(item, { small, side, alt, span });
    return h("p.soft", {}, `The viewer cannot draw “${item.renderer}”. The Python snippet loads the value.`);
  } catch (error) {
    return h("p.bad", {}, `This value could not be drawn: ${error.message}`);
  }
}

export function isPicture(item) {
  return ["image", "channels", "mask", "attention", "heatmap"].includes(item.renderer);
}

export function statsLine(item) {
  const stats = item.stats;
  if (!stats || (item.renderer === "scalar" && stats.count === 1)) return null; // a scalar needs no statistics
  const one = (name, value, bad = false) => h(bad ? "span.bad" : "span", {}, `${name} `, h("b", {}, value));
  return h("div.stats", { title: stats.over || null },
    ["min", "mean", "max", "std"]
      .filter((k) => stats[k] !== undefined && (stats[k] !== null || stats.min === null)) // a single value has no std
      .map((k) => one(k, show(stats[k]))),
    one("NaN", count(stats.nan || 0), stats.nan > 0),
    stats.inf ? one("Inf", count(stats.inf), true) : null,
    h("span", {}, `of ${count(stats.count)}`),
    !stats.over || ["all values", "finite values"].includes(stats.over) ? null : h("span", {}, stats.over)); // such as magnitudes of complex values
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch (error) {
    const area = h("textarea", { "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  announce("Copied to the clipboard");
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

// `named`: whether to show the name; a section whose only value has the same name already shows it.
export function drawItem(item, { extra = null, heading = "h4", named = true } = {}) {
  const code = h("div.snippet", { hidden: true });
  const python = h("button.quiet.small", {
    "aria-expanded": "false", "aria-label": `Python that loads ${item.name}`,
    onclick: () => {
      code.hidden = !code.hidden;
      python.setAttribute("aria-expanded", String(!code.hidden));
      if (!code.hidden && !code.childElementCount) {
        const button = h("button.small", { onclick: () => copy(item.snippet, button) }, "Copy");
        code.append(h("pre", { tabindex: "0", "aria-label": "Python" }, item.snippet), button);
      }
    },
  }, "Python");
  const what = [shape(item.shape), item.dtype, item.shape || item.dtype ? null : item.type].filter(Boolean).join(" ");
  return h(`div.item${WIDE.has(item.renderer) ? ".wide" : ""}`, { data: { renderer: item.renderer, item: item.id } },
    h("div.item-head", {}, named ? h(`${heading}.name`, {}, item.name) : null, h("span.what", {}, what), item.snippet ? python : null, extra),
    drawBody(item), note(item), statsLine(item), code);
}
