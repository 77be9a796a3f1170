/**
 * The tokenizer of a tokenizer.json: WordPiece as BERT's students have it, byte-level BPE as RoBERTa's, and
 * SentencePiece unigram in the form of multilingual E5 on the hub.
 *
 * Each step here gives Hugging Face's ids on every row of the conformance kit (`make browser-check`). Steps of which
 * that was not shown (such as ALBERT's) are refused by name, and the page offers no text field then.
 */

import {readModel} from "./models.mjs";
import {AlignedText, readNormalizer, UnsupportedTokenizer} from "./normalizers.mjs";
import {readWords} from "./words.mjs";

export {UnsupportedTokenizer};

const MARK = "▁";

/** A text's tokens: ids, and where each begins and ends in the user's string, in UTF-16 code units. */
class Tokens {
  ids = [];
  from = [];
  to = [];

  add(id, first, end) {
    this.ids.push(id);
    this.from.push(first);
    this.to.push(end);
  }
}

/** From texts to ids. */
export class Tokenizer {
  #added;
  #normalize;
  #cut;
  #model;
  #template;
  #leading;
  #mark;
  #spaces;
  #accents;

  /**
   * @param {object} file content of tokenizer.json.
   * @param {Characters} characters the tables of characters.txt.
   * @throws UnsupportedTokenizer it uses a step that was not compared with the reference here.
   */
  constructor(file, characters) {
    this.#model = readModel(file.model);
    this.#normalize = readNormalizer(file.normalizer ?? null, characters);
    this.#cut = readWords(file.pre_tokenizer, characters);
    this.#template = new Template(file.post_processor);
    this.#added = readAdded(file.added_tokens ?? []);
    this.#leading = characters.set("space");
    this.#mark = this.#model.id(MARK);
    this.#spaces = characters.set("text_space");
    this.#accents = characters.set("category_Mn");
  }

  /**
   * Encodes a text, or a pair of texts.
   *
   * @param {string} first the text; the question, if there is a passage.
   * @param {?string} second the second text.
   * @param {?number} maxLength tokens of the row at most, special ones included; of two texts the longer is cut first.
   * @returns {{ids: number[], types: number[], texts: number[], from: number[], to: number[]}} `texts` says which
   *     text a token is of, -1 for special tokens; `from` and `to` are places in that text's string.
   */
  encode(first, second = null, maxLength = null) {
    const one = this.#tokens(first);
    const two = second === null ? null : this.#tokens(second);
    let [room, more] = [one.ids.length, two?.ids.length ?? 0];
    if (maxLength !== null) {
      const both = Math.max(0, maxLength - this.#template.added(two !== null));
      if (room + more > both) [room, more] = two === null ? [both, 0] : longestFirst(room, more, both);
    }
    return this.#row([first, one, 0, room], two && [second, two, 0, more]);
  }

  /**
   * Encodes a question with a passage in as many windows as the passage needs.
   *
   * @param {string} question is never cut.
   * @param {string} passage an empty one gives one window.
   * @param {number} maxLength tokens of a window at most, special ones included.
   * @param {number} stride tokens of the passage that a window shares with the one before.
   * @throws RangeError the question leaves no room for a token of the passage that the window before lacks.
   */
  windows(question, passage, maxLength, stride) {
    const [one, two] = [this.#tokens(question), this.#tokens(passage)];
    const room = maxLength - this.#template.added(true) - one.ids.length;
    if (room <= stride) throw new RangeError(`the question has ${one.ids.length} tokens, and a row has ${maxLength}`);
    const rows = [];
    for (let begin = 0, end = -1; end < two.ids.length; begin += room - stride) {
      end = Math.min(begin + room, two.ids.length);
      rows.push(this.#row([question, one, 0, one.ids.length], [passage, two, begin, end]));
    }
    return rows;
  }

  #tokens(string) {
    const found = new Tokens();
    const whole = AlignedText.of(string);
    let kept = 0;
    const text = (part) => {
      const [normal, words] = this.#cut(this.#normalize(part));
      for (const [first, end] of words) this.#model.tokens(normal, first, end, found);
    };
    for (let at = 0; at < whole.size;) {
      const added = this.#added
        .get(whole.codes[at])
        ?.find((one) => one.codes.every((c, n) => whole.codes[at + n] === c));
      if (added === undefined) {
        at++;
        continue;
      }
      let first = at;
      while (added.takesSpaces && first > kept && this.#leading.has(whole.codes[first - 1])) first--;
      if (kept < first) text(whole.slice(kept, first));
      kept = at + added.codes.length;
      found.add(added.id, whole.from[first], whole.to[kept - 1]);
      at = kept;
    }
    if (kept < whole.size) text(whole.slice(kept, whole.size));
    return found;
  }

  #row(one, two) {
    const row = {ids: [], types: [], texts: [], from: [], to: []};
    const add = (id, type, text, first, end) => {
      row.ids.push(id);
      row.types.push(type);
      row.texts.push(text);
      row.from.push(first);
      row.to.push(end);
    };
    for (const slot of this.#template.slots(two !== null)) {
      if (slot.id !== undefined) {
        add(slot.id, slot.type, -1, 0, 0);
        continue;
      }
      const [, tokens, begin, end] = slot.text === 0 ? one : two;
      for (let at = begin; at < end; at++) add(tokens.ids[at], slot.type, slot.text, tokens.from[at], tokens.to[at]);
    }
    this.#tidy(row, 0, one[0]);
    if (two !== null) this.#tidy(row, 1, two[0]);
    return row;
  }

  /** Leaves out spaces around tokens, and includes accents that were stripped behind a token. */
  #tidy(row, of, string) {
    // From the end on, since what follows a token ends where the next one begins.
    let following = string.length;
    for (let at = row.ids.length - 1; at >= 0; at--) {
      if (row.texts[at] !== of) continue;
      let [first, end] = [row.from[at], row.to[at]];
      const next = following;
      following = first;
      // The space that SentencePiece puts before a word has no character there.
      if (row.ids[at] === this.#mark && string.slice(first, end) !== MARK) end = first;
      while (first < end && this.#spaces.has(string.charCodeAt(first))) first++;
      while (first < end && this.#spaces.has(string.charCodeAt(end - 1))) end--;
      while (first < end && end < next && this.#accents.has(string.codePointAt(end))) {
        end += string.codePointAt(end) > 0xffff ? 2 : 1;
      }
      [row.from[at], row.to[at]] = [first, end];
    }
  }
}

/** Returns how many tokens of each text stay. The same arithmetic as the reference's `longest_first`. */
function longestFirst(first, second, both) {
  let shorter = Math.min(first, second);
  let longer = shorter > both ? shorter : Math.max(shorter, both - shorter);
  if (shorter + longer > both) {
    shorter = Math.floor(both / 2);
    longer = shorter + (both % 2);
  }
  return first > second
    ? [Math.min(first, longer), Math.min(second, shorter)]
    : [Math.min(first, shorter), Math.min(second, longer)];
}

/** Returns the tokens that are found in a text before anything else, by what they begin with, the longest first. */
function readAdded(entries) {
  const byFirst = new Map();
  for (const entry of entries) {
    const odd = ["single_word", "rstrip", "normalized"].find((flag) => entry[flag]);
    if (odd) throw new UnsupportedTokenizer(`the added token ${entry.content} with ${odd}`);
    const codes = Array.from(entry.content, (one) => one.codePointAt(0));
    if (codes.length === 0) continue;
    byFirst.set(codes[0], [...(byFirst.get(codes[0]) ?? []), {id: entry.id, codes, takesSpaces: entry.lstrip}]);
  }
  for (const group of byFirst.values()) group.sort((one, other) => other.codes.length - one.codes.length);
  return byFirst;
}

/** How special tokens are put around one text or two: the `post_processor`. */
class Template {
  #single;
  #pair;

  constructor(step) {
    if (step?.type === "RobertaProcessing") {
      const [cls, sep] = [
        {id: step.cls[1], type: 0},
        {id: step.sep[1], type: 0},
      ];
      this.#single = [cls, {text: 0, type: 0}, sep];
      this.#pair = [...this.#single, sep, {text: 1, type: 0}, sep];
      return;
    }
    if (step?.type !== "TemplateProcessing") throw new UnsupportedTokenizer(`the post_processor ${step?.type}`);
    const slots = (entries) =>
      entries.flatMap(({Sequence: text, SpecialToken: special}) => {
        if (text) return [{text: text.id === "A" ? 0 : 1, type: text.type_id}];
        return step.special_tokens[special.id].ids.map((id) => ({id, type: special.type_id}));
      });
    [this.#single, this.#pair] = [slots(step.single), slots(step.pair)];
  }

  slots(isPair) {
    return isPair ? this.#pair : this.#single;
  }

  /** Returns how many special tokens come with one text or two. */
  added(isPair) {
    return this.slots(isPair).filter((slot) => slot.id !== undefined).length;
  }
}
