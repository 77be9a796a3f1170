/** Steps that change a text before it is cut into words: those of BERT's and multilingual E5's tokenizers. */

import {CharacterSet} from "./characters.mjs";
import {characterMap} from "./sentencepiece.mjs";

const SPACE = 0x20;
const QUESTION_MARK = 0x3f;
const FINAL_SIGMA = 0x3c2;
const SIGMA = 0x3a3;

/** A tokenizer that was not compared with the reference here; the message says what it uses. */
export class UnsupportedTokenizer extends Error {}

/** Code points, and for each the part of the user's string that it came from. */
export class AlignedText {
  codes = [];
  from = [];
  to = [];

  /** Takes a user's text apart; half a surrogate pair becomes a question mark, as in the reference. */
  static of(string) {
    const text = new AlignedText();
    for (let at = 0; at < string.length;) {
      const code = string.codePointAt(at);
      const end = at + (code > 0xffff ? 2 : 1);
      text.add(code >= 0xd800 && code <= 0xdfff ? QUESTION_MARK : code, at, end);
      at = end;
    }
    return text;
  }

  get size() {
    return this.codes.length;
  }

  add(code, first, end) {
    this.codes.push(code);
    this.from.push(first);
    this.to.push(end);
  }

  slice(first, end) {
    const part = new AlignedText();
    part.codes = this.codes.slice(first, end);
    part.from = this.from.slice(first, end);
    part.to = this.to.slice(first, end);
    return part;
  }

  /** Returns the text in which each code point has become those that a function returns; null leaves it as it is. */
  replaced(becomes) {
    const text = new AlignedText();
    for (let at = 0; at < this.size; at++) {
      const found = becomes(this.codes[at], at);
      if (found === null) text.add(this.codes[at], this.from[at], this.to[at]);
      else for (const code of found) text.add(code, this.from[at], this.to[at]);
    }
    return text;
  }
}

/**
 * Reads the `normalizer` of tokenizer.json, and returns a function from an AlignedText to another.
 *
 * @throws UnsupportedTokenizer it has a step that was not compared with the reference here.
 */
export function readNormalizer(step, characters) {
  if (step === null) return (text) => text;
  if (step.type === "Sequence") return inTurn(step.normalizers.map((one) => readNormalizer(one, characters)));
  if (step.type === "BertNormalizer") return bert(step, characters);
  if (step.type === "Replace") return replace(step, characters);
  if (step.type === "Precompiled") return characterMap(step.precompiled_charsmap, characters);
  throw new UnsupportedTokenizer(`the normalizer ${step.type}`);
}

function inTurn(steps) {
  return (text) => steps.reduce((changed, step) => step(changed), text);
}

function bert(step, characters) {
  const steps = [];
  if (step.clean_text) {
    const controls = characters.set("bert_control");
    const spaces = characters.set("bert_space");
    steps.push((text) => text.replaced((code) => (controls.has(code) ? [] : spaces.has(code) ? [SPACE] : null)));
  }
  if (step.handle_chinese_chars) {
    const ideographs = characters.set("bert_ideograph");
    steps.push((text) => text.replaced((code) => (ideographs.has(code) ? [SPACE, code, SPACE] : null)));
  }
  if (step.strip_accents ?? step.lowercase) {
    const decompose = canonicalDecomposition(characters);
    const marks = characters.set("bert_mark");
    steps.push((text) => decompose(text).replaced((code) => (marks.has(code) ? [] : null)));
  }
  if (step.lowercase) {
    const lower = characters.map("lower");
    steps.push((text) => text.replaced((code) => lower.get(code) ?? null));
  }
  return inTurn(steps);
}

/** Returns Unicode's NFD by the reference's own tables. */
function canonicalDecomposition(characters) {
  const canonical = characters.map("nfd");
  const ranks = new Map();
  for (let rank = 1; characters.knows(`order_${rank}`); rank++) {
    const members = characters.set(`order_${rank}`);
    for (let code = 0x300; code < 0x20000; code++) if (members.has(code)) ranks.set(code, rank);
  }
  const rankOf = (code) => (code < 0x300 ? 0 : (ranks.get(code) ?? 0));
  return (text) => {
    if (text.codes.every((code) => code < 0xa0)) return text;
    const parts = text.replaced((code) => syllable(code) ?? canonical.get(code) ?? null);
    // Marks behind a letter come into their order; equal ones stay as they are.
    for (let at = 1; at < parts.size; at++) {
      const rank = rankOf(parts.codes[at]);
      if (rank === 0) continue;
      let place = at;
      while (place > 0 && rankOf(parts.codes[place - 1]) > rank) place--;
      if (place === at) continue;
      for (const list of [parts.codes, parts.from, parts.to]) list.splice(place, 0, ...list.splice(at, 1));
    }
    return parts;
  };
}

/** Returns the two or three letters of a Hangul syllable, or null. Source: The Unicode Standard, section 3.12. */
function syllable(code) {
  const number = code - 0xac00;
  if (number < 0 || number >= 19 * 21 * 28) return null;
  const letters = [0x1100 + Math.floor(number / (21 * 28)), 0x1161 + (Math.floor(number / 28) % 21)];
  return number % 28 > 0 ? [...letters, 0x11a7 + (number % 28)] : letters;
}

/** Replacements in the tokenizers that are made of a vocab.txt, see pipeline/text/tokenizers.py; by their patterns. */
function replace(step, characters) {
  const pattern = step.pattern.Regex;
  if (pattern === String.raw`[\x{0}\x{FFFD}[\p{Cc}\p{Cf}&&[^\t\n\r]]]` && step.content === "") {
    const gone = new CharacterSet().include(characters.set("category_Cc")).include(characters.set("category_Cf"));
    const kept = new Set([0x9, 0xa, 0xd]);
    const isGone = (code) => code === 0 || code === 0xfffd || (gone.has(code) && !kept.has(code));
    return (text) => text.replaced((code) => (isGone(code) ? [] : null));
  }
  if (pattern === String.raw`\p{Mn}` && step.content === "") {
    const marks = characters.set("category_Mn");
    return (text) => text.replaced((code) => (marks.has(code) ? [] : null));
  }
  if (pattern === " {2,}" && step.content === " ") return singleSpaces;
  const sigma = String.raw`Σ(?<=\p{Cased}\p{Case_Ignorable}{0,8}Σ)(?!\p{Case_Ignorable}*\p{Cased})`;
  if (pattern === sigma && step.content === "ς") return finalSigma(characters);
  throw new UnsupportedTokenizer(`a replacement of ${pattern ?? JSON.stringify(step.pattern)}`);
}

/** Makes one space of several; as in the reference, it belongs to the last of them. */
function singleSpaces(text) {
  const isFollowed = (at) => text.codes[at] === SPACE && text.codes[at + 1] === SPACE;
  return text.replaced((_, at) => (isFollowed(at) ? [] : null));
}

/** Makes a capital sigma that ends a word the small letter that stands there. */
function finalSigma(characters) {
  const cased = characters.set("regex_cased");
  const ignorable = characters.set("regex_case_ignorable");
  const meetsCased = (codes, at, step, most) => {
    for (let seen = 0; seen <= most && at >= 0 && at < codes.length; at += step, seen++) {
      if (cased.has(codes[at])) return true;
      if (!ignorable.has(codes[at])) return false;
    }
    return false;
  };
  return (text) =>
    text.replaced((code, at) => {
      if (code !== SIGMA) return null;
      const ends = meetsCased(text.codes, at - 1, -1, 8) && !meetsCased(text.codes, at + 1, 1, Infinity);
      return ends ? [FINAL_SIGMA] : null;
    });
}
