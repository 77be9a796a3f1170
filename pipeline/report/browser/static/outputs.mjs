/** What people read out of a model's outputs; the same arithmetic as pipeline/metrics/outputs.py, case by case. */

/** The longest answer in tokens. Source: `max_answer_length` of google-research/bert, run_squad.py. */
const LONGEST_ANSWER = 30;
/** A percentile is given only if at least so many samples lie beyond it, as in pipeline/benchmark/record.py. */
const TAIL_SAMPLES = 2;

/** Returns probabilities. */
export function softmax(logits) {
  const largest = Math.max(...logits);
  const sum = Math.log(Array.from(logits).reduce((all, one) => all + Math.exp(one - largest), 0));
  return Array.from(logits, (one) => Math.exp(one - largest - sum));
}

/** Returns the logistic function of a number, between 0 and 1. */
export function sigmoid(number) {
  return 1 / (1 + Math.exp(-number));
}

/** Returns each label with its probability, the most probable first. */
export function labelled(labels, logits) {
  const shares = softmax(logits);
  return labels.map((label, at) => ({label, share: shares[at]})).sort((one, other) => other.share - one.share);
}

/** Returns each label with a probability of its own, the most probable first, and whether the text has it. */
export function eachLabel(labels, logits, thresholds = null) {
  const found = labels.map((label, at) => {
    const share = sigmoid(logits[at]);
    return {label, share, isGiven: share >= (thresholds?.[at] ?? 0.5)};
  });
  return found.sort((one, other) => other.share - one.share);
}

/** Returns the cosine of two lists of numbers, or null if one of them is all zero. */
export function cosine(one, other) {
  let [product, oneSquares, otherSquares] = [0, 0, 0];
  for (let at = 0; at < one.length; at++) {
    product += one[at] * other[at];
    oneSquares += one[at] * one[at];
    otherSquares += other[at] * other[at];
  }
  const norms = Math.sqrt(oneSquares) * Math.sqrt(otherSquares);
  return norms > 0 ? product / norms : null;
}

/** Returns a percentile as numpy interpolates it, or null if the samples are too few to tell. */
export function percentile(samples, fraction) {
  if (samples.length * (1 - fraction) < TAIL_SAMPLES - 1e-9) return null;
  const sorted = [...samples].sort((one, other) => one - other);
  const place = fraction * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}

/** Returns where each word of a text is, as `[first, end]`; white space separates words. */
export function words(text, characters) {
  const spaces = characters.set("text_space");
  const found = [];
  let first = -1;
  for (let at = 0; at <= text.length; at++) {
    const outside = at === text.length || spaces.has(text.charCodeAt(at));
    if (!outside && first < 0) first = at;
    if (outside && first >= 0) {
      found.push([first, at]);
      first = -1;
    }
  }
  return found;
}

/**
 * Tags each word of a text by its first token, and joins the tags into entities, without punctuation at their ends.
 *
 * @param {string} text the text.
 * @param {string[]} labels `B-person`, `I-person`, `O` …, in the order of the logits.
 * @param {{from: number[], to: number[]}} row where each token is in the text; both equal for special tokens.
 * @param {number[][]} logits of each token.
 *
 * Source: Ramshaw and Marcus 1995, as conlleval reads it: an `I-` after another kind begins an entity.
 */
export function entities(text, labels, row, logits, characters) {
  const found = [];
  let open = null;
  for (const [first, end] of words(text, characters)) {
    const token = row.from.findIndex((from, at) => from < end && row.to[at] > first);
    if (token < 0) continue;
    const shares = softmax(logits[token]);
    const best = shares.indexOf(Math.max(...shares));
    const tag = labels[best];
    const begins = tag.startsWith("B-");
    const kind = begins || tag.startsWith("I-") ? tag.slice(2) : tag;
    if (tag === "O") {
      open = null;
    } else if (kind === open && !begins) {
      const last = found.at(-1);
      last.to = end;
      last.scores.push(shares[best]);
    } else {
      open = kind;
      found.push({from: first, to: end, kind, scores: [shares[best]]});
    }
  }
  return found.map((one) => withoutPunctuation(text, one, characters));
}

/** Returns an entity less the punctuation at its ends; one that is all punctuation stays as it is. */
function withoutPunctuation(text, {from, to, kind, scores}, characters) {
  const score = scores.reduce((sum, one) => sum + one, 0) / scores.length;
  const [punctuation, spaces] = [characters.category("P"), characters.set("text_space")];
  const points = [];
  for (let at = from; at < to; at += text.codePointAt(at) > 0xffff ? 2 : 1) points.push([at, text.codePointAt(at)]);
  // Spaces too: `Anna —` may be two words of one entity.
  const inside = points.filter(([, code]) => !punctuation.has(code) && !spaces.has(code));
  if (inside.length === 0) return {from, to, kind, score};
  const [last, code] = inside.at(-1);
  return {from: inside[0][0], to: last + (code > 0xffff ? 2 : 1), kind, score};
}

/**
 * Returns the best answer over the windows of a passage, or null if no window has a token of it.
 *
 * @param {{from: number[], to: number[], starts: number[], ends: number[]}[]} windows where each token is in the
 *     passage (-1 for those that are not of it), and its two logits.
 *
 * Source: Devlin et al. 2019, section 4.2: the pair of a start and a later end with the largest sum of logits.
 */
export function answer(windows) {
  let best = null;
  for (const {from, to, starts, ends} of windows) {
    const inside = [...from.keys()].filter((at) => from[at] >= 0);
    inside.forEach((first, number) => {
      for (const last of inside.slice(number, number + LONGEST_ANSWER)) {
        const score = starts[first] + ends[last];
        if (best === null || score > best.score) best = {from: from[first], to: to[last], score};
      }
    });
  }
  return best;
}
