// Reads score maps as arrays, without parsing text; viewer/arrays.py writes them.

const KINDS = { i4: Int32Array, f8: Float64Array, u1: Uint8Array, i8: BigInt64Array };

// JSON followed by arrays. Names such as values/0 and values/1 become a list.
function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const { arrays, ...result } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  let at = 4 + length;
  for (const [name, kind, count] of arrays) {
    at = Math.ceil(at / 8) * 8;
    const values = new KINDS[kind](buffer, at, count);
    at += values.byteLength;
    const [key, place] = name.split("/");
    if (place === undefined) result[key] = values;
    else (result[key] ||= [])[Number(place)] = values;
  }
  return result;
}

// As in JSON: null for a missing value, text for a non-finite number.
function numbers(values, absent) {
  const result = Array.from(values);
  for (let i = 0; i < result.length; i += 1) {
    if (absent[i]) result[i] = null;
    else if (!Number.isFinite(result[i])) result[i] = String(result[i]);
  }
  return result;
}

// An index beyond 53 bits becomes text.
const whole = (values) => Array.from(values, (one) => (typeof one === "number" ? one : Number.isSafeInteger(Number(one)) ? Number(one) : String(one)));

// A map, the same as from JSON.
export function scoreMap(buffer) {
  const { absent, change_absent: gone, ...result } = unpack(buffer);
  result.indices = whole(result.indices);
  result.values = result.values.map((values, r) => numbers(values, absent[r]));
  result.change = result.change && numbers(result.change, gone);
  result.common = Array.from(result.common);
  return result;
}
