/** What the page asks for by kind of output, and how it shows the answer. Texts reach it as texts, never as HTML. */

import * as outputs from "./outputs.mjs";

/** Returns an element with a class and content, which are strings or other elements. */
export function element(tag, kind, ...content) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...content);
  return made;
}

const main = (...content) => element("p", "main", ...content);
const percent = (share) => `${(100 * share).toFixed(1)} %`;

function table(rows) {
  const cells = ([name, value, kind]) => element("tr", kind, element("td", "", name), element("td", "n", value));
  return element("table", "", element("tbody", "", ...rows.map(cells)));
}

/** Returns the nodes of a text in which parts are marked. */
function marked(text, parts) {
  const nodes = [];
  let kept = 0;
  for (const {from, to, label} of parts) {
    nodes.push(text.slice(kept, from), element("mark", "", text.slice(from, to), element("small", "", label)));
    kept = to;
  }
  return [...nodes, text.slice(kept)];
}

/** Runs one row, and returns its output with what ran. */
async function ran(student, row) {
  return {row, output: await student.output(row)};
}

const activated = (signature, number) => (signature.activation === "sigmoid" ? outputs.sigmoid(number) : number);

/**
 * By kind of output: the names of the text fields with an example each (a second name that ends in `?` may stay empty),
 * and a function from student and texts to the rows that were run and the nodes that show the answer.
 */
export const KINDS = {
  embedding: {
    fields: [
      ["First text", "A man is playing a guitar."],
      ["Second text", "Somebody makes music."],
    ],
    async ask(student, first, second, prompt) {
      const runs = [];
      for (const text of [first, second]) runs.push(await ran(student, student.encode(text, null, prompt)));
      const similarity = outputs.cosine(runs[0].output, runs[1].output);
      return [runs, [main(`cosine similarity ${similarity === null ? "none" : similarity.toFixed(4)}`)]];
    },
  },
  logits: {
    fields: [
      ["Text", "I would buy it again at once."],
      ["Second text, if the task takes pairs?", ""],
    ],
    async ask(student, first, second) {
      const run = await ran(student, student.encode(first, second || null));
      const found = outputs.labelled(student.signature.labels, run.output);
      return [[run], [main(found[0].label), table(found.map(({label, share}) => [label, percent(share)]))]];
    },
  },
  multi_label: {
    fields: [
      ["Text", "I would buy it again at once."],
      ["Second text, if the task takes pairs?", ""],
    ],
    async ask(student, first, second) {
      const run = await ran(student, student.encode(first, second || null));
      const found = outputs.eachLabel(student.signature.labels, run.output, student.signature.thresholds);
      const given = found.filter((one) => one.isGiven).map((one) => one.label);
      const rows = found.map(({label, share, isGiven}) => [label, percent(share), isGiven ? "passed" : ""]);
      return [[run], [main(given.join(", ") || "no label"), table(rows)]];
    },
  },
  value: {
    fields: [
      ["Text", "Is the shop open on Sunday?"],
      ["Second text, if the task takes pairs?", "It is closed on Sundays."],
    ],
    async ask(student, first, second) {
      const run = await ran(student, student.encode(first, second || null));
      return [[run], [main(activated(student.signature, run.output[0]).toFixed(4))]];
    },
  },
  values: {
    fields: [
      ["Text", "It rained all day."],
      ["Second text, if the task takes pairs?", ""],
    ],
    async ask(student, first, second) {
      const run = await ran(student, student.encode(first, second || null));
      const {labels} = student.signature;
      return [
        [run],
        [table(labels.map((name, at) => [name, activated(student.signature, run.output[at]).toFixed(4)]))],
      ];
    },
  },
  token_logits: {
    fields: [["Text", "Anna flew from Berlin to Buenos Aires."]],
    async ask(student, first) {
      const run = await ran(student, student.encode(first));
      const {labels} = student.signature;
      const logits = run.row.ids.map((_, at) => run.output.slice(at * labels.length, (at + 1) * labels.length));
      const found = outputs.entities(first, labels, run.row, logits, student.characters);
      const parts = found.map((one) => ({...one, label: `${one.kind} ${percent(one.score)}`}));
      return [[run], [main(...marked(first, parts))]];
    },
  },
  spans: {
    fields: [
      ["Question", "When does the café open?"],
      ["Passage", "The café on the corner opens at half past seven, and the bakery beside it an hour earlier."],
    ],
    async ask(student, first, second) {
      const runs = [];
      for (const row of student.windows(first, second)) runs.push(await ran(student, row));
      const windows = runs.map(({row, output}) => ({
        from: row.from.map((place, at) => (row.texts[at] === 1 ? place : -1)),
        to: row.to,
        starts: row.ids.map((_, at) => output[2 * at]),
        ends: row.ids.map((_, at) => output[2 * at + 1]),
      }));
      const best = outputs.answer(windows);
      if (best === null) return [runs, [main("the passage is empty")]];
      return [
        runs,
        [main(second.slice(best.from, best.to)), element("p", "", ...marked(second, [{...best, label: ""}]))],
      ];
    },
  },
};
