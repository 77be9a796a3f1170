/** SentencePiece's own map of characters (`Precompiled`): a trie over UTF-8 in two arrays, and what it leads to. */

import {CharacterSet} from "./characters.mjs";

/** Groups of code points of fewer bytes are looked up as a whole. */
const LARGEST_GROUP = 6;
const LABEL = 0x800000ff | 0;

/**
 * Reads a map, and returns a function from an AlignedText to another.
 *
 * As the reference does, a group of code points that is shown as one character is looked up as a whole if it is small,
 * and otherwise code point by code point; and of several entries that fit, the shortest is taken.
 *
 * @throws RangeError the map ends within its trie.
 */
export function characterMap(base64, characters) {
  const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
  if (bytes.length === 0) return (text) => text;
  const size = new DataView(bytes.buffer).getUint32(0, true);
  const trie = new Int32Array(bytes.buffer.slice(4, 4 + size));
  const texts = bytes.subarray(4 + size);
  const utf8 = [new TextEncoder(), new TextDecoder()];
  const endOf = graphemes(characters);
  const encode = (codes) => utf8[0].encode(String.fromCodePoint(...codes));
  const known = new Map();
  const lookUp = (codes) => {
    const key = String.fromCodePoint(...codes);
    if (!known.has(key)) known.set(key, find(trie, texts, encode(codes), utf8[1]));
    return known.get(key);
  };
  return (text) => {
    const built = text.slice(0, 0);
    for (let first = 0; first < text.size;) {
      const end = endOf(text.codes, first);
      const group = text.codes.slice(first, end);
      const whole = encode(group).length < LARGEST_GROUP ? lookUp(group) : null;
      if (whole !== null) {
        for (const code of whole) built.add(code, text.from[first], text.to[end - 1]);
      } else {
        for (let at = first; at < end; at++) {
          for (const code of lookUp([text.codes[at]]) ?? [text.codes[at]]) built.add(code, text.from[at], text.to[at]);
        }
      }
      first = end;
    }
    return built;
  };
}

/** Returns the code points that some bytes become, or null. */
function find(trie, texts, bytes, decoder) {
  const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
  let place = offset(trie[0]);
  for (const byte of bytes) {
    if (byte === 0) return null;
    place ^= byte;
    const unit = trie[place];
    if (unit === undefined || (unit & LABEL) !== byte) return null;
    place ^= offset(unit);
    if (((unit >>> 8) & 1) === 1) {
      if (trie[place] === undefined) return null;
      const first = trie[place] & 0x7fffffff;
      const end = texts.indexOf(0, first);
      const found = decoder.decode(texts.subarray(first, end < 0 ? texts.length : end));
      return Array.from(found, (one) => one.codePointAt(0));
    }
  }
  return null;
}

/** Returns a function that finds where a group that is shown as one character ends (Unicode's UAX 29). */
function graphemes(characters) {
  const names = [
    "Control",
    "Prepend",
    "Extend",
    "Regional_Indicator",
    "SpacingMark",
    "L",
    "V",
    "T",
    "LV",
    "LVT",
    "ZWJ",
  ];
  const sets = names.map((name) => [name, characters.set(`break_${name}`)]);
  const some = sets.reduce((all, [, set]) => all.include(set), new CharacterSet());
  const pictures = characters.set("break_Pictographic");
  const kind = (code) => (some.has(code) ? sets.find(([, set]) => set.has(code))[0] : null);
  const joins = (left, right, flags) => {
    if (left === "Control" || right === "Control") return false;
    if (["Extend", "ZWJ", "SpacingMark"].includes(right) || left === "Prepend") return true;
    if (left === "L") return ["L", "V", "LV", "LVT"].includes(right);
    if (left === "LV" || left === "V") return right === "V" || right === "T";
    if (left === "LVT" || left === "T") return right === "T";
    return left === "Regional_Indicator" && right === "Regional_Indicator" && flags % 2 === 1;
  };
  return (codes, first) => {
    let at = first + 1;
    let left = kind(codes[first]);
    let flags = left === "Regional_Indicator" ? 1 : 0;
    let picture = pictures.has(codes[first]);
    for (; at < codes.length; at++) {
      const [right, pictured] = [kind(codes[at]), pictures.has(codes[at])];
      const line = codes[at - 1] === 0xd && codes[at] === 0xa;
      if (!line && !joins(left, right, flags) && !(left === "ZWJ" && picture && pictured)) break;
      if (right === "Regional_Indicator") flags++;
      picture = pictured || (picture && (right === "Extend" || right === "ZWJ"));
      left = right;
    }
    return at;
  };
}
