// Asks the server. Answers are kept until the run changes on disk, so that going back is instant.

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

async function ask(url) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" } });
  } catch (error) {
    throw new Trouble("The server does not answer.", "Is endoscope view still running? This page tries again by itself.", 0);
  }
  let body = null;
  try {
    body = await answer.json();
  } catch (error) {
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
  answer.catch(() => kept.delete(url));
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  return answer;
}

export function fresh(path, parameters) {
  return ask(address(path, parameters));
}

export function forget() {
  kept.clear();
}
