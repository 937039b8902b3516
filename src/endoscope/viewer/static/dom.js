// Creates elements. Text always becomes a text node: names and labels of a run are untrusted.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// h("p.soft", {title: "x"}, "text", otherElement): a tag with its classes, attributes, children.
export function h(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, attributes, children);
}

export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function replace(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

export function announce(text) {
  document.getElementById("announce").textContent = text;
}

// A table with a caption for screen readers. Columns: {title, number, cell(row), className}.
export function table(label, columns, rows, { selected = null, key = null, className = "" } = {}) {
  return h(
    `table${className}`,
    { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map((c) => h(c.number ? "th.num" : "th", { scope: "col" }, c.title)))),
    h(
      "tbody",
      {},
      rows.map((row) =>
        h(
          "tr",
          { class: selected && selected(row) ? "on" : null, data: key ? { key: key(row) } : {} },
          columns.map((c) => h(c.number ? "td.num" : "td", {}, c.cell(row))),
        ),
      ),
    ),
  );
}

// An empty state: a title and what to do.
export function kind(title, ...text) {
  return h("div.kind", {}, h("h2", {}, title), text.map((t) => (typeof t === "string" ? h("p", {}, t) : t)));
}

export function failure(error) {
  return h(
    "div.kind.trouble",
    { role: "alert" },
    h("h2", {}, error.message || "Something went wrong"),
    error.hint ? h("p", {}, error.hint) : null,
  );
}

export function skeleton(...heights) {
  return h("div.skeletons", { "aria-hidden": "true" }, heights.map((px) => h("div.skeleton", { style: { height: `${px}px` } })));
}
