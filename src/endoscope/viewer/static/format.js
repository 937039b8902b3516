// Numbers, sizes and times as text. The server writes NaN and infinities as text.

export function number(value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "number") return value;
  return Number(value);
}

export function isMissing(value) {
  return value === null || value === undefined;
}

const minus = (text) => text.replaceAll("-", "−");

// Three or four significant digits, so that columns of a table stay comparable.
export function show(value, digits = 3) {
  const x = number(value);
  if (x === null) return "–";
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return minus(String(x));
  const size = Math.abs(x);
  if (size >= 1e5 || size < 1e-3) return minus(x.toExponential(digits - 1).replace("e+", "e"));
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return minus(x.toFixed(Math.min(decimals, 6)));
}

// An integer with all its digits; anything else as in `show`.
export function exact(value, digits) {
  return Number.isSafeInteger(value) ? minus(String(value)) : show(value, digits);
}

export function signed(value) {
  const x = number(value);
  if (x === null) return "–";
  return (x > 0 ? "+" : "") + show(x);
}

export function count(n) {
  return n.toLocaleString("en-US").replaceAll(",", " ");
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

export function bytes(n) {
  if (isMissing(n)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  let x = n;
  while (x >= 1000 && i < units.length - 1) {
    x /= 1000;
    i += 1;
  }
  return `${i === 0 ? x : x.toFixed(x < 10 ? 1 : 0)} ${units[i]}`;
}

export function ago(seconds) {
  if (isMissing(seconds)) return "–";
  const s = Math.max(0, Date.now() / 1000 - seconds);
  if (s < 5) return "just now";
  if (s < 90) return `${Math.round(s)} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

export function shape(sizes) {
  if (!sizes) return "";
  return sizes.length ? sizes.join("×") : "scalar";
}

// An evaluation has no number.
export function epochText(epoch) {
  return String(epoch) === "eval" ? "evaluation" : `epoch ${epoch}`;
}

export function better(direction) {
  if (!direction) return "";
  return direction === "higher" ? "higher is better" : "lower is better";
}
