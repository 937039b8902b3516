// Requests to the server. Answers are cached until the run changes on disk, so that going back is instant.

import { scoreMap } from "./arrays.js";

export class Trouble extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

const MAX_CACHED = 64;
const cached = new Map();

export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

// A JavaScript number has 53 bits of precision; an index may need 63. Larger integers stay text.
const LONG = /(?:^|[^\d.])\d{16,}(?![\d.e])/;

function parsed(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value)) return value;
    if (!context) throw new Trouble("This browser cannot read an index this large.", "Use a newer browser, or number the datapoints below 2^53.", 200);
    return /^-?\d+$/.test(context.source) ? context.source : value;
  });
}

// How many requests are pending, and the callbacks for when none is.
let asking = 0;
let waiting = [];

// Resolves when no request is pending.
export function quiet() {
  return asking ? new Promise((done) => waiting.push(done)) : Promise.resolve();
}

function ask(url) {
  return counted(async () => decoded(await fetched(url)));
}

async function counted(question) {
  asking += 1;
  try {
    return await question();
  } finally {
    asking -= 1;
    if (!asking) for (const done of waiting.splice(0)) done();
  }
}

async function fetched(url) {
  try {
    return await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" } });
  } catch (error) {
    throw new Trouble("The server does not answer.", "Is endoscope view still running? This page keeps trying.", 0);
  }
}

async function decoded(answer) {
  let body = null;
  try {
    body = parsed(await answer.text());
  } catch (error) {
    if (error instanceof Trouble) throw error;
    body = null;
  }
  if (!answer.ok) {
    const details = (body && body.error) || {};
    throw new Trouble(details.message || `The server answered ${answer.status}.`, details.hint || "", answer.status);
  }
  if (body === null) throw new Trouble("The server's answer was not JSON.", "", answer.status);
  return body;
}

export function get(path, parameters) {
  const url = address(path, parameters);
  if (cached.has(url)) {
    const answer = cached.get(url);
    cached.delete(url);
    cached.set(url, answer);
    return answer;
  }
  const answer = ask(url);
  cached.set(url, answer);
  answer.catch(() => cached.get(url) === answer && cached.delete(url)); // unless a newer request replaced it
  if (cached.size > MAX_CACHED) cached.delete(cached.keys().next().value);
  return answer;
}

// An answer in lines of JSON: `first` is the first line as soon as it arrives, `whole` merges all lines into one object.
export function getLines(path, parameters) {
  const url = address(path, { ...parameters, form: "lines" });
  if (cached.has(url)) return cached.get(url);
  let resolve = null;
  const first = new Promise((done) => (resolve = done));
  const whole = readLines(url, resolve);
  const answer = { first: Promise.race([first, whole]), whole };
  cached.set(url, answer);
  whole.catch(() => cached.get(url) === answer && cached.delete(url));
  answer.first.catch(() => null); // `whole` reports it
  if (cached.size > MAX_CACHED) cached.delete(cached.keys().next().value);
  return answer;
}

function readLines(url, resolve) {
  return counted(async () => {
    const answer = await fetched(url);
    if (!answer.ok) return decoded(answer);
    const lines = [];
    let rest = "";
    try {
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const texts = (rest + part.value).split("\n");
        rest = texts.pop();
        lines.push(...texts.map(parsed));
        if (lines.length) resolve(lines[0]);
      }
    } catch (error) {
      if (error instanceof Trouble) throw error;
      throw new Trouble("The server's answer was cut off.", "The terminal where endoscope view runs may say why.", 0);
    }
    return Object.assign({}, ...lines);
  });
}

// Score maps depend only on the score files, which `version` identifies, so they survive `forget`.
const MAX_MAP_BYTES = 64 << 20; // bytes of cached maps
const maps = new Map();

export function getMap(parameters, version) {
  const url = address("/api/map", { ...parameters, form: "arrays" });
  const key = `${url} ${version}`;
  const known = maps.get(key) || { bytes: 0 };
  maps.delete(key);
  maps.set(key, known);
  if (known.answer) return known.answer;
  known.answer = fetched(url).then(async (answer) => {
    if (!answer.ok) return decoded(answer);
    const buffer = await answer.arrayBuffer();
    known.bytes = 4 * buffer.byteLength; // as lists
    let sum = 0;
    for (const one of maps.values()) sum += one.bytes;
    for (const [old, one] of maps) {
      if (sum <= MAX_MAP_BYTES || one === known) break;
      maps.delete(old);
      sum -= one.bytes;
    }
    return scoreMap(buffer);
  });
  known.answer.catch(() => maps.get(key) === known && maps.delete(key));
  return known.answer;
}

export function fresh(path, parameters) {
  return ask(address(path, parameters));
}

export function forget() {
  cached.clear();
}
