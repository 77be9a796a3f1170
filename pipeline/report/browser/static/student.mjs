/** A file with its tokenizer and a runner: from a text to its output, and whether its golden rows hold here. */

import * as outputs from "./outputs.mjs";

/** The file's outputs by kind of task, in the order in which golden rows have them. */
const OUTPUTS = {spans: ["start_logits", "end_logits"], embedding: ["sentence_embedding"]};
const PER_TOKEN = ["token_logits", "spans"];
/** Windows over a passage share a third of their tokens, as in run_squad.py. */
const OVERLAP = 3;
/** The mask of a token that is attended to and not pooled. */
const UNPOOLED = 2;
const [WARM_UPS, RUNS, MOST_MS] = [3, 30, 10_000];
/** Runs after which a slow device may stop early: a median is given from four samples on. */
const FEWEST_RUNS = 4;

/** One converted file. */
export class Student {
  /**
   * @param {object} signature content of signature.json.
   * @param {?Tokenizer} tokenizer null if this page may not use the file's tokenizer.
   * @param {{run: function(string, Object<string, Int32Array>): Promise<Object<string, Float32Array>>}} runner runs one
   *     function of the file.
   * @param {Characters} characters the tables of characters.txt.
   */
  constructor(signature, tokenizer, runner, characters) {
    this.signature = signature;
    this.tokenizer = tokenizer;
    this.runner = runner;
    this.characters = characters;
    this.maxLength = Math.max(...signature.functions.map((one) => one.max_length));
  }

  /** Returns the row of a text behind a prompt, as sentence-transformers makes it: both are tokenised as one text. */
  encode(first, second = null, prompt = null, maxLength = this.maxLength) {
    const before = prompt ? this.signature.prompts[prompt] : "";
    const row = this.tokenizer.encode(before + first, second, maxLength);
    if (this.signature.include_prompt || before === "") return row;
    const alone = this.tokenizer.encode(before, null, maxLength);
    // The special token at its end stands behind the text in the whole row.
    const unpooled = alone.ids.length - (alone.texts.at(-1) === -1 ? 1 : 0);
    return {...row, unpooled: Math.min(unpooled, row.ids.length)};
  }

  /** Returns the windows over a passage. */
  windows(question, passage, maxLength = this.maxLength) {
    return this.tokenizer.windows(question, passage, maxLength, Math.floor(maxLength / OVERLAP));
  }

  /** Returns the function at which a row runs, the smallest that fits, and its padded inputs. */
  pad(row) {
    const tokens = row.ids.length;
    const chosen = this.signature.functions.find((one) => tokens <= one.max_length);
    if (!chosen) throw new RangeError(`a row of ${tokens} tokens does not fit; the file takes ${this.maxLength}`);
    const values = {
      input_ids: (at) => (at < tokens ? row.ids[at] : this.signature.pad_token_id),
      attention_mask: (at) => (at >= tokens ? 0 : at < (row.unpooled ?? 0) ? UNPOOLED : 1),
      token_type_ids: (at) => (at < tokens ? row.types[at] : 0),
    };
    const length = chosen.max_length;
    const inputs = chosen.inputs.map(({name}) => [name, Int32Array.from({length}, (_, at) => values[name](at))]);
    return {name: chosen.name, length, inputs: Object.fromEntries(inputs)};
  }

  /** Returns the output of a row as golden rows have it: outputs side by side, token after token, without padding. */
  async output(row) {
    const {name, inputs, length} = this.pad(row);
    const found = await this.runner.run(name, inputs);
    const kind = this.signature.output_kind;
    const arrays = (OUTPUTS[kind] ?? ["logits"]).map((one) => found[one]);
    if (!PER_TOKEN.includes(kind)) return Array.from(arrays[0]);
    return row.ids.flatMap((_, token) =>
      arrays.flatMap((array) => {
        const width = array.length / length;
        return Array.from(array.subarray(token * width, (token + 1) * width));
      }),
    );
  }

  /** Returns the latency of a row in ms, as a list of samples, without tokenisation; inputs and outputs are copied. */
  async measure(row, tell = () => {}) {
    const {name, inputs, length} = this.pad(row);
    const samples = [];
    const began = performance.now();
    for (let run = -WARM_UPS; run < RUNS && (run < FEWEST_RUNS || performance.now() - began < MOST_MS); run++) {
      const start = performance.now();
      await this.runner.run(name, inputs);
      if (run >= 0) samples.push(performance.now() - start);
      await tell(run);
    }
    return {samples, length, p50: outputs.percentile(samples, 0.5)};
  }

  /**
   * Runs the rows that the pipeline put beside the file, and compares ids and outputs. Rows that are longer than the
   * file takes are passed over, and without a tokenizer those of which the prompt's tokens are not pooled.
   */
  async check(golden, tell = () => {}) {
    const results = [];
    const pooled = (row) => this.tokenizer || this.signature.include_prompt || !row.prompt;
    const rows = golden.rows.filter((row) => row.input_ids.length <= this.maxLength && pooled(row));
    for (const row of rows) {
      const encoded = this.#goldenRow(row, golden.max_length);
      const sameIds = this.tokenizer ? sameRow(encoded, row) : null;
      const output = await this.output(this.#given(row, encoded));
      const comparable = output.length === row.output.length && output.every(Number.isFinite);
      results.push({row, sameIds, output, cosine: comparable ? outputs.cosine(row.output, output) : null, comparable});
      await tell(results.length, rows.length);
    }
    return verdict(results, golden);
  }

  #goldenRow(row, maxLength) {
    if (!this.tokenizer) return null;
    if (row.window === null) return this.encode(row.first, row.second, row.prompt, maxLength);
    return this.windows(row.first, row.second ?? "", maxLength)[row.window] ?? null;
  }

  /** Returns the row with the ids of golden.json: of other ids the output says nothing about the file. */
  #given(row, encoded) {
    return {ids: row.input_ids, types: row.token_type_ids, unpooled: encoded?.unpooled ?? 0};
  }
}

function sameRow(encoded, row) {
  const same = (one, other) => one.length === other.length && one.every((value, at) => value === other[at]);
  return encoded !== null && same(encoded.ids, row.input_ids) && same(encoded.types, row.token_type_ids);
}

/** Returns what the golden rows show: the same bounds, and the same arithmetic, as in both apps. */
function verdict(results, golden) {
  const failures = [];
  const shown = (row) => JSON.stringify(row.first.slice(0, 30));
  const other = results.find((one) => one.sameIds === false);
  if (other) failures.push(`other ids for ${shown(other.row)}`);
  if (results.length === 0) failures.push("there is no row that the file takes");
  const least = golden.min_cosine ?? -Infinity;
  const cosineOf = (one) => one.cosine ?? -Infinity;
  const worst = results.reduce((low, one) => (low && cosineOf(low) <= cosineOf(one) ? low : one), null);
  // Written so that NaN fails.
  const isLow = (one) => !(one.cosine !== null && one.cosine >= least);
  if (worst && isLow(worst))
    failures.push(`cosine ${worst.cosine ?? "none"}, ${least} is asked for, ${shown(worst.row)}`);
  const sqnrDb = results.every((one) => one.comparable) ? sqnr(results) : null;
  if (golden.min_sqnr_db !== null && sqnrDb !== null && !(sqnrDb >= golden.min_sqnr_db)) {
    failures.push(`SQNR ${sqnrDb.toFixed(2)} dB, ${golden.min_sqnr_db} is asked for`);
  }
  const held = results.filter((one) => one.sameIds !== false && !isLow(one)).length;
  return {rows: results.length, held, worstCosine: worst?.cosine ?? null, sqnrDb, failures, sameIds: !other};
}

/** Returns the signal to quantisation noise over all rows. */
function sqnr(results) {
  let [noise, signal] = [0, 0];
  for (const {row, output} of results) {
    row.output.forEach((wanted, at) => {
      noise += (wanted - output[at]) ** 2;
      signal += wanted ** 2;
    });
  }
  return noise === 0 ? Infinity : 10 * Math.log10(signal / noise);
}
