// Asks the server. Answers are kept until the run changes on disk, so that going back is instant.

import { scoreMap } from "./arrays.js";

export class Trouble extends Error {
  constructor(message, hint, status) {
    super(message);
    this.hint = hint;
    this.status = status;
  }
}

const KEPT = 64;
const kept = new Map();

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

// A number of JavaScript has 53 bits; a datapoint's index may have 63. Whole numbers beyond stay the text they are.
const LONG = /(?:^|[^\d.])\d{16,}(?![\d.e])/;

function parsed(text) {
  if (!LONG.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value, context) => {
    if (typeof value !== "number" || !Number.isInteger(value) || Number.isSafeInteger(value)) return value;
    if (!context) throw new Trouble("This browser cannot read an index this large.", "Take a newer one, or number the datapoints below 2^53.", 200);
    return /^-?\d+$/.test(context.source) ? context.source : value;
  });
}

// How many questions have no answer yet, and who waits until there is none.
let asking = 0;
let waiting = [];

// When nothing is asked for.
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
    throw new Trouble("The server does not answer.", "Is endoscope view still running? This page tries again by itself.", 0);
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
    const told = (body && body.error) || {};
    throw new Trouble(told.message || `The server answered ${answer.status}.`, told.hint || "", answer.status);
  }
  if (body === null) throw new Trouble("The server's answer was not JSON.", "", answer.status);
  return body;
}

export function get(path, parameters) {
  const url = address(path, parameters);
  if (kept.has(url)) {
    const answer = kept.get(url);
    kept.delete(url);
    kept.set(url, answer);
    return answer;
  }
  const answer = ask(url);
  kept.set(url, answer);
  answer.catch(() => kept.get(url) === answer && kept.delete(url)); // not a newer one that was asked for since
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return answer;
}

// An answer in lines of JSON: `first` is its first line, as soon as it is there, `whole` all of them as one object.
export function getLines(path, parameters) {
  const url = address(path, { ...parameters, form: "lines" });
  if (kept.has(url)) return kept.get(url);
  let tell = null;
  const first = new Promise((done) => (tell = done));
  const whole = readLines(url, tell);
  const answer = { first: Promise.race([first, whole]), whole };
  kept.set(url, answer);
  whole.catch(() => kept.get(url) === answer && kept.delete(url));
  answer.first.catch(() => null); // `whole` tells it
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return answer;
}

function readLines(url, tell) {
  return counted(async () => {
    const answer = await fetched(url);
    if (!answer.ok) return decoded(answer);
    const lines = [];
    let rest = "";
    try {
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        const found = (rest + part.value).split("\n");
        rest = found.pop();
        lines.push(...found.map(parsed));
        if (lines.length) tell(lines[0]);
      }
    } catch (error) {
      if (error instanceof Trouble) throw error;
      throw new Trouble("The server broke off its answer.", "The terminal of endoscope view may say why.", 0);
    }
    return Object.assign({}, ...lines);
  });
}

// Score maps depend on score files alone, which `version` stands for: they outlive `forget`.
const MAPS = 64 << 20; // bytes of maps that are kept
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
      if (sum <= MAPS || one === known) break;
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
  kept.clear();
}
