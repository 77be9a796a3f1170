// Post-processing says what pipeline.metrics.outputs says, case by case: `node postprocessing.mjs STATIC CASES`.

import assert from "node:assert/strict";
import {readFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [home, cases] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(resolve(home, name)));
const {Characters} = await load("characters.mjs");
const outputs = await load("outputs.mjs");
const characters = new Characters(readFileSync(join(home, "characters.txt"), "utf8"));

function close(wanted, found, bound = 1e-9) {
  assert.equal(found.length, wanted.length);
  wanted.forEach((one, at) => assert.ok(Math.abs(one - found[at]) <= bound * Math.max(1, Math.abs(one))));
}

/** By kind of case: what is compared. Labels of one's own and the nearest of many are not on the page. */
const COMPARED = {
  softmax: (one) => close(one.shares, outputs.softmax(one.logits)),
  each_label: (one) => {
    const found = outputs.eachLabel([...one.logits.keys()].map(String), one.logits, one.thresholds);
    assert.deepEqual(
      found.map(({label}) => label),
      one.labels,
    );
    assert.deepEqual(
      found.map(({isGiven}) => isGiven),
      one.given,
    );
    close(
      one.shares,
      found.map(({share}) => share),
    );
  },
  words: (one) => assert.deepEqual(outputs.words(one.text, characters), one.words),
  entities: (one) => {
    const found = outputs.entities(one.text, one.labels, one, one.logits, characters);
    const places = (rows) => rows.map(([from, to, , kind]) => [from, to, kind]);
    assert.deepEqual(
      found.map(({from, to, kind}) => [from, to, kind]),
      places(one.entities),
    );
    close(
      one.entities.map((row) => row[2]),
      found.map(({score}) => score),
      1e-6,
    );
  },
  answer: (one) => {
    const found = outputs.answer(one.windows);
    assert.deepEqual(found && [found.from, found.to, found.score], one.answer);
  },
  nearest: (one) => {
    const cosines = one.places.map((place) => outputs.cosine(one.one, one.among[place]));
    close(one.cosines, cosines, 1e-6);
  },
  statistics: (one) => {
    const wanted = one.percentiles.slice(0, 3);
    [0.5, 0.9, 0.99].forEach((fraction, at) => {
      const found = outputs.percentile(one.samples, fraction);
      if (wanted[at] === null) assert.equal(found, null);
      else close([wanted[at]], [found]);
    });
  },
};

const counts = {};
for (const line of readFileSync(cases, "utf8").split("\n").filter(Boolean)) {
  const one = JSON.parse(line);
  if (!(one.kind in COMPARED)) continue;
  COMPARED[one.kind](one);
  counts[one.kind] = (counts[one.kind] ?? 0) + 1;
}
assert.deepEqual(Object.keys(counts).sort(), Object.keys(COMPARED).sort());
console.log(`post-processing: ${Object.values(counts).reduce((sum, one) => sum + one)} cases, none differs`);
