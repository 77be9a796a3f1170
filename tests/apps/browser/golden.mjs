// The verdict on golden rows fires for every fault that it is there for: `node golden.mjs STATIC KIT`.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [home, kit] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(resolve(home, name)));
const {Characters} = await load("characters.mjs");
const {Tokenizer} = await load("tokenizer.mjs");
const {Student} = await load("student.mjs");
const characters = new Characters(readFileSync(join(home, "characters.txt"), "utf8"));
const tokenizer = new Tokenizer(JSON.parse(readFileSync(join(kit, "wordpiece", "tokenizer.json"), "utf8")), characters);

const tensor = (name) => ({name, dtype: "int32", shape: [1, 16]});
const inputs = ["attention_mask", "input_ids", "token_type_ids"].map(tensor);
const signature = {
  output_kind: "embedding",
  labels: null,
  pad_token_id: 0,
  prompts: {query: "find: "},
  include_prompt: false,
  functions: [{name: "at_16", min_length: 16, max_length: 16, inputs, outputs: []}],
};

/** What stands for a file: numbers that depend on every id, on its place and on the mask. */
function computed({input_ids: ids, attention_mask: mask}) {
  const sums = [1, 2, 3].map((n) => ids.reduce((sum, id, at) => sum + mask[at] * Math.sin(n * (id + at)), 0));
  return Float32Array.from(sums);
}

const student = (compute = computed, used = tokenizer) =>
  new Student(signature, used, {run: async (_, given) => ({sentence_embedding: compute(given)})}, characters);

async function golden(change = (row) => row) {
  const rows = [];
  for (const [first, second, prompt] of [
    ["Thanks!", null, null],
    ["Is it open?", "No.", null],
    ["a café", null, "query"],
  ]) {
    const row = student().encode(first, second, prompt);
    const output = await student().output(row);
    rows.push(
      change({first, second, window: null, prompt, input_ids: row.ids, token_type_ids: row.types, output}, rows.length),
    );
  }
  return {max_length: 16, min_cosine: 0.999, min_sqnr_db: 60, rows};
}

const right = await student().check(await golden());
assert.deepEqual([right.failures, right.rows, right.held, right.sameIds, right.sqnrDb], [[], 3, 3, true, Infinity]);
assert.ok(Math.abs(right.worstCosine - 1) < 1e-12);

// A prompt's tokens are attended to and not pooled.
const prompted = student().pad(student().encode("a café", null, "query")).inputs.attention_mask;
assert.deepEqual([...prompted].slice(0, 5), [2, 2, 2, 1, 1]);

const wrong = [
  [
    "ids",
    await student().check(await golden((row, at) => (at === 1 ? {...row, input_ids: [101, 5, 102]} : row))),
    /other ids for "Is it/,
  ],
  [
    "types",
    await student().check(await golden((row) => ({...row, token_type_ids: row.token_type_ids.map((one) => 1 - one)}))),
    /other ids/,
  ],
  ["another direction", await student((given) => computed(given).reverse()).check(await golden()), /^cosine /],
  ["a number that is none", await student(() => Float32Array.of(1, NaN, 1)).check(await golden()), /^cosine none/],
  ["zeros", await student(() => new Float32Array(3)).check(await golden()), /^cosine none/],
  ["fewer numbers", await student(() => new Float32Array(2)).check(await golden()), /^cosine none/],
  [
    "another size",
    await student((given) => computed(given).map((one) => one * 1.1)).check(await golden()),
    /^SQNR 20\.00 dB/,
  ],
  [
    "one row",
    await student().check(await golden((row, at) => (at ? row : {...row, output: [...row.output].reverse()}))),
    /"Thanks!"$/,
  ],
  ["no rows", await student().check({...(await golden()), rows: []}), /no row/],
  [
    "rows that are too long",
    await student().check(await golden((row) => ({...row, input_ids: Array(17).fill(1)}))),
    /no row/,
  ],
];
for (const [name, found, message] of wrong) {
  assert.ok(
    found.failures.some((one) => message.test(one)),
    `${name}: ${JSON.stringify(found)}`,
  );
}

// Without a tokenizer the ids are those of golden.json; a row of which the prompt is not pooled is passed over.
const bare = await student(computed, null).check(await golden());
assert.deepEqual([bare.failures, bare.rows], [[], 2]);

const timed = await student().measure(student().encode("Thanks!"));
assert.deepEqual([timed.samples.length, timed.length, timed.p50 >= 0], [30, 16, true]);
console.log(`golden rows: ${wrong.length} faults, each found`);
