// Every id, type and span is the reference library's: `node conformance.mjs STATIC KIT`; STATIC has tokenizer.mjs.
//
// Prints a line for each folder of the kit and returns 1 if a row differs. A folder whose tokenizer the page refuses is
// named with the reason; which those may be is for the caller to say.

import {createReadStream, readdirSync, readFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const [home, kit] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(resolve(home, name)));
const {Characters} = await load("characters.mjs");
const {Tokenizer, UnsupportedTokenizer} = await load("tokenizer.mjs");
const characters = new Characters(readFileSync(join(home, "characters.txt"), "utf8"));

const equal = (one, other) => one.length === other.length && one.every((value, at) => value === other[at]);

/** Returns what is wrong with a row, or null. */
function difference(tokenizer, [first, second, longest, ids, types, from, to]) {
  const found = tokenizer.encode(first, second, longest);
  for (const [name, wanted] of Object.entries({ids, types, from, to})) {
    if (wanted !== null && !equal(wanted, found[name])) return `${name} are ${found[name]}, and should be ${wanted}`;
  }
  return null;
}

/** Compares a folder's rows; returns the line about it, and whether all are equal. */
async function compare(name) {
  let tokenizer;
  try {
    tokenizer = new Tokenizer(JSON.parse(readFileSync(join(kit, name, "tokenizer.json"), "utf8")), characters);
  } catch (error) {
    if (!(error instanceof UnsupportedTokenizer)) throw error;
    return [`${name}: refused, ${error.message}`, true];
  }
  let [rows, tokens, wrong, smallest] = [0, 0, 0, null];
  for await (const line of createInterface({input: createReadStream(join(kit, name, "rows.jsonl"))})) {
    const row = JSON.parse(line);
    rows++;
    tokens += row[3].length;
    const problem = difference(tokenizer, row);
    if (problem === null) continue;
    wrong++;
    if (smallest === null || row[0].length < smallest[0]) smallest = [row[0].length, `${line}\n${problem}`];
  }
  const said = `${name}: ${rows} rows, ${tokens} tokens, ${wrong} rows differ`;
  return [wrong ? `${said}; the smallest is ${smallest[1]}` : said, wrong === 0 && rows > 0];
}

const results = [];
for (const name of readdirSync(kit).sort()) results.push(await compare(name));
for (const [line] of results) console.log(line);
process.exit(results.length > 0 && results.every(([, equal]) => equal) ? 0 : 1);
