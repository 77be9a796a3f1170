/** What makes tokens of a word: WordPiece, byte-level BPE, and SentencePiece unigram. */

import {UnsupportedTokenizer} from "./normalizers.mjs";
import {BYTE_CHARACTERS} from "./words.mjs";

/**
 * Reads the `model` of tokenizer.json.
 *
 * @throws UnsupportedTokenizer it is of another kind, or has an option that was not compared with the reference here.
 */
export function readModel(model) {
  if (model.type === "WordPiece") return new WordPiece(model);
  if (model.type === "BPE") return new BytePairs(model);
  if (model.type === "Unigram") return new Unigram(model);
  throw new UnsupportedTokenizer(`a model of the kind ${model.type}`);
}

/** The longest word first, then the longest continuation. */
class WordPiece {
  #ids;
  #prefix;
  #unknown;
  #longestWord;
  #longestToken = 0;

  constructor(model) {
    this.#ids = new Map(Object.entries(model.vocab));
    for (const token of this.#ids.keys()) this.#longestToken = Math.max(this.#longestToken, token.length);
    this.#prefix = model.continuing_subword_prefix ?? "##";
    this.#longestWord = model.max_input_chars_per_word ?? 100;
    this.#unknown = this.#ids.get(model.unk_token);
    if (this.#unknown === undefined) throw new UnsupportedTokenizer(`an unk_token ${model.unk_token} without an id`);
  }

  id(token) {
    return this.#ids.get(token);
  }

  tokens(text, begin, end, found) {
    const unknown = () => found.add(this.#unknown, text.from[begin], text.to[end - 1]);
    if (end - begin > this.#longestWord) return unknown();
    const pieces = [];
    for (let first = begin; first < end;) {
      let last = Math.min(end, first + this.#longestToken);
      let id;
      for (; last > first; last--) {
        const piece = String.fromCodePoint(...text.codes.slice(first, last));
        id = this.#ids.get(first > begin ? this.#prefix + piece : piece);
        if (id !== undefined) break;
      }
      if (id === undefined) return unknown();
      pieces.push([id, text.from[first], text.to[last - 1]]);
      first = last;
    }
    for (const piece of pieces) found.add(...piece);
  }
}

/** Ids of two neighbours as one key: no vocabulary has two million tokens. */
const pair = (first, second) => first * 2 ** 21 + second;

/** Merges of neighbours, the earliest learnt first. */
class BytePairs {
  #ids;
  #merges = new Map();
  #known = new Map();

  constructor(model) {
    const options = ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges", "byte_fallback"];
    const odd = options.find((one) => model[one]);
    if (odd) throw new UnsupportedTokenizer(`a BPE model with ${odd}`);
    this.#ids = new Map(Object.entries(model.vocab));
    // Then no character is unknown, whatever the model does with those.
    const lacking = BYTE_CHARACTERS.find((code) => !this.#ids.has(String.fromCodePoint(code)));
    if (lacking !== undefined) throw new UnsupportedTokenizer("a BPE model without a token for each byte");
    model.merges.forEach((entry, rank) => {
      const [first, second] = Array.isArray(entry) ? entry : entry.split(" ");
      const [one, other, both] = [first, second, first + second].map((token) => this.#ids.get(token));
      if (both === undefined) throw new UnsupportedTokenizer(`a merge to ${first + second}, which has no id`);
      this.#merges.set(pair(one, other), {rank, id: both});
    });
  }

  id(token) {
    return this.#ids.get(token);
  }

  tokens(text, begin, end, found) {
    const word = String.fromCodePoint(...text.codes.slice(begin, end));
    if (!this.#known.has(word)) this.#known.set(word, this.#merged(Array.from(word, (one) => this.#ids.get(one))));
    let first = begin;
    for (const [id, length] of this.#known.get(word)) {
      found.add(id, text.from[first], text.to[first + length - 1]);
      first += length;
    }
  }

  /** Merges until no neighbours can be; returns ids, each with the number of bytes that it covers. */
  #merged(ids) {
    const parts = ids.map((id) => [id, 1]);
    for (;;) {
      let [best, place] = [null, -1];
      for (let at = 0; at + 1 < parts.length; at++) {
        const merge = this.#merges.get(pair(parts[at][0], parts[at + 1][0]));
        if (merge !== undefined && (best === null || merge.rank < best.rank)) [best, place] = [merge, at];
      }
      if (best === null) return parts;
      parts.splice(place, 2, [best.id, parts[place][1] + parts[place + 1][1]]);
    }
  }
}

/** How much less probable than the rarest token an unknown character is. Source: `kUnkPenalty` of SentencePiece. */
const PENALTY = 10;

/** The most probable split of a word (Viterbi). */
class Unigram {
  #ids = new Map();
  #scores;
  #unknown;
  #unknownScore;
  #longest = 0;
  #known = new Map();

  constructor(model) {
    if (model.byte_fallback) throw new UnsupportedTokenizer("a unigram model with byte_fallback");
    if (model.unk_id === null) throw new UnsupportedTokenizer("a unigram model without an unknown token");
    this.#unknown = model.unk_id;
    this.#scores = model.vocab.map(([token, score], id) => {
      this.#ids.set(token, id);
      this.#longest = Math.max(this.#longest, token.length);
      return score;
    });
    this.#unknownScore = this.#scores.reduce((least, one) => Math.min(least, one), Infinity) - PENALTY;
  }

  id(token) {
    return this.#ids.get(token);
  }

  tokens(text, begin, end, found) {
    const letters = text.codes.slice(begin, end).map((code) => String.fromCodePoint(code));
    const word = letters.join("");
    if (!this.#known.has(word)) this.#known.set(word, this.#best(letters));
    for (const [id, first, last] of this.#known.get(word))
      found.add(id, text.from[begin + first], text.to[begin + last - 1]);
  }

  /** Returns the best split: ids, each with the letters from and to which it covers. */
  #best(letters) {
    const best = [[0, -1, -1], ...letters.map(() => null)];
    const relax = (first, end, id, score) => {
      const candidate = score + best[first][0];
      if (best[end] === null || candidate > best[end][0]) best[end] = [candidate, first, id];
    };
    for (let first = 0; first < letters.length; first++) {
      let token = "";
      let isSingle = false;
      for (let end = first + 1; end <= letters.length && token.length < this.#longest; end++) {
        token += letters[end - 1];
        const id = this.#ids.get(token);
        if (id === undefined) continue;
        relax(first, end, id, this.#scores[id]);
        if (end === first + 1) isSingle = true;
      }
      if (!isSingle) relax(first, first + 1, this.#unknown, this.#unknownScore);
    }
    const found = [];
    for (let end = letters.length; end > 0; end = best[end][1]) {
      const [, first, id] = best[end];
      const after = found.at(-1);
      // Unknown characters side by side are one unknown token.
      if (id === this.#unknown && after?.[0] === this.#unknown) after[1] = first;
      else found.push([id, first, end]);
    }
    const named = ([id, first, end]) =>
      id === this.#unknown ? (this.#ids.get(letters.slice(first, end).join("")) ?? id) : id;
    return found.reverse().map((one) => [named(one), one[1], one[2]]);
  }
}
