/** Cuts a normalised text into words, as BERT's, RoBERTa's and multilingual E5's tokenizers do. */

import {AlignedText, UnsupportedTokenizer} from "./normalizers.mjs";

const [SPACE, APOSTROPHE, MARK] = [0x20, 0x27, 0x2581];
const CONTRACTIONS = ["s", "t", "re", "ve", "m", "ll", "d"].map((one) =>
  Array.from(one, (letter) => letter.charCodeAt(0)),
);

/** GPT-2's characters for bytes: those that can be seen stand for themselves, the others for U+0100 and on. */
export const BYTE_CHARACTERS = (() => {
  let next = 256;
  const isSeen = (byte) => (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
  return Array.from({length: 256}, (_, byte) => (isSeen(byte) ? byte : next++));
})();

/**
 * Reads the `pre_tokenizer`: a function from a text to a text and the ranges of its words.
 *
 * @throws UnsupportedTokenizer it has a step that was not compared with the reference here.
 */
export function readWords(step, characters) {
  if (step?.type === "ByteLevel" && step.use_regex !== false) return byteLevel(step, characters);
  const steps = step?.type === "Sequence" ? step.pretokenizers : [];
  if (steps.length === 2 && steps[0].type === "WhitespaceSplit") return metaspace(steps[1], characters);
  const ranges = bert(step, characters);
  return (text) => [text, ranges(text.codes)];
}

/** Returns a function from code points to the ranges of words: at spaces, and at each sign of punctuation. */
function bert(step, characters) {
  const steps = step?.type === "Sequence" ? step.pretokenizers : [step];
  const [bert, split] = steps;
  if (bert?.type !== "BertPreTokenizer") throw new UnsupportedTokenizer(`the pre_tokenizer ${bert?.type}`);
  const alone = [characters.set("bert_punctuation")];
  if (steps.length > 1) {
    const known = split.type === "Split" && split.behavior === "Isolated" && !split.invert;
    if (!known || split.pattern.Regex !== String.raw`[\p{P}\x{2B820}-\x{2B91F}]` || steps.length > 2) {
      throw new UnsupportedTokenizer(`the pre_tokenizer ${JSON.stringify(split)}`);
    }
    alone.push(characters.category("P").add(0x2b820, 0x2b91f));
  }
  const spaces = characters.set("space");
  return (codes) => {
    const words = [];
    let first = 0;
    for (let at = 0; at <= codes.length; at++) {
      const isAlone = at < codes.length && alone.some((set) => set.has(codes[at]));
      if (at < codes.length && !isAlone && !spaces.has(codes[at])) continue;
      if (first < at) words.push([first, at]);
      if (isAlone) words.push([at, at + 1]);
      first = at + 1;
    }
    return words;
  };
}

/** Returns SentencePiece's words between spaces, each with a mark before it; a mark in the text begins a word, too. */
function metaspace(step, characters) {
  const known = step.type === "Metaspace" && step.replacement === "▁" && step.prepend_scheme === "always";
  if (!known || step.split === false) throw new UnsupportedTokenizer(`the pre_tokenizer ${JSON.stringify(step)}`);
  const spaces = characters.set("space");
  return (text) => {
    const marked = new AlignedText();
    const begins = [];
    for (let at = 0; at < text.size; at++) {
      const code = text.codes[at];
      if (spaces.has(code)) continue;
      const isFirst = at === 0 || spaces.has(text.codes[at - 1]);
      if (isFirst || code === MARK) begins.push(marked.size);
      if (isFirst && code !== MARK) marked.add(MARK, text.from[at], text.from[at]);
      marked.add(code, text.from[at], text.to[at]);
    }
    return [marked, begins.map((first, number) => [first, begins[number + 1] ?? marked.size])];
  };
}

/** Returns GPT-2's words, each character of which is then as many characters as it has bytes in UTF-8. */
function byteLevel(step, characters) {
  const ranges = gpt2(characters);
  const utf8 = new TextEncoder();
  return (text) => {
    const spaced = new AlignedText();
    if (step.add_prefix_space && text.size > 0 && text.codes[0] !== SPACE)
      spaced.add(SPACE, text.from[0], text.from[0]);
    for (let at = 0; at < text.size; at++) spaced.add(text.codes[at], text.from[at], text.to[at]);
    const bytes = new AlignedText();
    const words = ranges(spaced.codes).map(([first, end]) => {
      const begin = bytes.size;
      for (let at = first; at < end; at++) {
        for (const byte of utf8.encode(String.fromCodePoint(spaced.codes[at]))) {
          bytes.add(BYTE_CHARACTERS[byte], spaced.from[at], spaced.to[at]);
        }
      }
      return [begin, bytes.size];
    });
    return [bytes, words];
  };
}

/**
 * Returns a function from code points to the ranges of words by GPT-2's pattern, whose alternatives are tried in turn:
 * `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
 */
function gpt2(characters) {
  const [letters, numbers] = [characters.category("L"), characters.category("N")];
  const spaces = characters.set("regex_space");
  const kind = (code) =>
    letters.has(code) ? "letter" : numbers.has(code) ? "number" : spaces.has(code) ? "space" : "other";
  const endOf = (codes, at) => {
    if (codes[at] === APOSTROPHE) {
      const found = CONTRACTIONS.find((one) => one.every((code, n) => codes[at + 1 + n] === code));
      if (found) return at + 1 + found.length;
    }
    const isLed = codes[at] === SPACE && at + 1 < codes.length && kind(codes[at + 1]) !== "space";
    const begin = isLed ? at + 1 : at;
    const same = kind(codes[begin]);
    let end = begin + 1;
    while (end < codes.length && kind(codes[end]) === same) end++;
    // Of several spaces before a word, the last one is left to it.
    return same === "space" && end < codes.length && end - at > 1 ? end - 1 : end;
  };
  return (codes) => {
    const words = [];
    for (let at = 0; at < codes.length;) {
      const end = endOf(codes, at);
      words.push([at, end]);
      at = end;
    }
    return words;
  };
}
