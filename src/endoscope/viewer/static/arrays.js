// Score maps as arrays, which need no parsing; viewer/arrays.py is the other side.

const KINDS = { i4: Int32Array, f8: Float64Array, u1: Uint8Array, i8: BigInt64Array };

// JSON with arrays beside it. Names such as values/0 and values/1 become a list.
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { arrays, ...found } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  for (const [name, kind, count] of arrays) {
    at = Math.ceil(at / 8) * 8;
    const values = new KINDS[kind](buffer, at, count);
    at += values.byteLength;
    const [key, place] = name.split("/");
    if (place === undefined) found[key] = values;
    else (found[key] ||= [])[Number(place)] = values;
  }
  return found;
}

// As JSON has them: null where there is none, text where a number is not finite.
function numbers(values, absent) {
  const found = Array.from(values);
  for (let i = 0; i < found.length; i += 1) {
    if (absent[i]) found[i] = null;
    else if (!Number.isFinite(found[i])) found[i] = String(found[i]);
  }
  return found;
}

// An index beyond 53 bits stays the text it is.
const whole = (values) => Array.from(values, (one) => (typeof one === "number" ? one : Number.isSafeInteger(Number(one)) ? Number(one) : String(one)));

// A map, the same as its JSON would be.
export function scoreMap(buffer) {
  const { absent, change_absent: gone, ...found } = unpack(buffer);
  found.indices = whole(found.indices);
  found.values = found.values.map((values, r) => numbers(values, absent[r]));
  found.change = found.change && numbers(found.change, gone);
  found.common = Array.from(found.common);
  return found;
}
