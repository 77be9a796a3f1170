/**
 * What the reference tokenizer knows of characters, as characters.txt has it.
 *
 * A browser's own Unicode tables are of another age than those of Hugging Face's `tokenizers`, so none is asked.
 * Both apps read the same file; its lines are explained in tests/apps/tokenizers/tables.py.
 */

const CODE_POINTS = 0x110000;

/** A set of code points, one bit each. */
export class CharacterSet {
  #bits = new Uint8Array(CODE_POINTS / 8);

  has(code) {
    return (this.#bits[code >> 3] & (1 << (code & 7))) !== 0;
  }

  add(first, last = first) {
    for (let code = first; code <= last; code++) this.#bits[code >> 3] |= 1 << (code & 7);
    return this;
  }

  /** Adds the members of another set. */
  include(other) {
    for (let at = 0; at < this.#bits.length; at++) this.#bits[at] |= other.#bits[at];
    return this;
  }
}

/** The tables by name. Each is read when it is asked for first: a tokenizer needs few of them. */
export class Characters {
  #lines = new Map();
  #read = new Map();

  constructor(text) {
    for (const line of text.split("\n")) {
      const [kind, name, ...entries] = line.split(" ");
      if (kind === "set" || kind === "map") this.#lines.set(name, entries);
    }
  }

  /** Returns whether there is a table of this name. */
  knows(name) {
    return this.#lines.has(name);
  }

  /** Returns a set of characters. */
  set(name) {
    return this.#once(name, (entries) => {
      const found = new CharacterSet();
      let before = 0;
      for (const entry of entries) {
        const [distance, more = "0"] = entry.split("-");
        const first = before + parseInt(distance, 16);
        before = first + parseInt(more, 16);
        found.add(first, before);
      }
      return found;
    });
  }

  /** Returns what characters become, as lists of code points by code point. */
  map(name) {
    return this.#once(name, (entries) => {
      const found = new Map();
      let code = 0;
      for (const entry of entries) {
        const [distance, becomes] = entry.split("=");
        code += parseInt(distance, 16);
        found.set(code, becomes === "" ? [] : becomes.split(".").map((one) => parseInt(one, 16)));
      }
      return found;
    });
  }

  /** Returns the general categories whose names begin so, as one set: `L`, `Lu`, `P`. */
  category(beginning) {
    const whole = new CharacterSet();
    for (const name of this.#lines.keys()) if (name.startsWith(`category_${beginning}`)) whole.include(this.set(name));
    return whole;
  }

  #once(name, read) {
    if (!this.#read.has(name)) {
      if (!this.#lines.has(name)) throw new Error(`characters.txt has no table ${name}`);
      this.#read.set(name, read(this.#lines.get(name)));
    }
    return this.#read.get(name);
  }
}
