// JSON with long arrays beside it as bytes; viewer/arrays.py is the other side.

const KINDS = { i4: Int32Array, f8: Float64Array, u1: Uint8Array, i8: BigInt64Array };

// Names such as values/0 and values/1 become a list. Whole numbers that a number cannot hold stay BigInt.
export function unpack(buffer) {
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
