/** LiteRT.js: Google's runtime for .tflite files in browsers, as the server has it; nothing comes from elsewhere. */

import {loadAndCompile, loadLiteRt, Tensor, unloadLiteRt} from "./litert/core.mjs";

const WASM = new URL("./litert/", import.meta.url).pathname;

/** Returns the processors on which this browser may run a file, the first of which is the default. */
export async function accelerators() {
  // Browsers have WebGPU on https: and localhost alone, and a machine without a graphics processor has no adapter.
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  return adapter ? ["wasm", "webgpu"] : ["wasm"];
}

/** A file opened in the runtime. One is open at a time: the one before is closed, since a phone has little memory. */
export class Runner {
  #model;

  constructor(model, accelerator) {
    this.#model = model;
    this.accelerator = accelerator;
  }

  /**
   * Opens a file.
   *
   * @param {Uint8Array} bytes the .tflite.
   * @param {string} accelerator `wasm` or `webgpu`.
   * @throws Error the runtime cannot read the file, or lacks one of its operations there.
   */
  static async open(bytes, accelerator) {
    unloadLiteRt();
    // With it, operations that WebGPU lacks run in WebAssembly; without it, a file runs on WebGPU as a whole or not.
    const jspi = accelerator === "webgpu" && "Suspending" in WebAssembly;
    await loadLiteRt(WASM, {jspi});
    const model = await loadAndCompile(bytes, {accelerator, cpuOptions: {numThreads: 1}});
    const used = model.options.accelerator;
    if (used !== accelerator) throw new Error(`the file does not run on ${accelerator} in this browser; take ${used}`);
    return new Runner(model, accelerator);
  }

  /** Whether all operations run on the accelerator; null on the processor, where nothing is delegated away. */
  get isWhole() {
    return this.accelerator === "wasm" ? null : this.#model.isFullyAccelerated;
  }

  /** Runs a function of the file; both inputs and outputs are copied. */
  async run(name, inputs) {
    const signature = this.#model.signatures[name];
    if (!signature) throw new Error(`the file has no function ${name}; it has ${Object.keys(this.#model.signatures)}`);
    const tensors = Object.entries(inputs).map(([input, values]) => [input, new Tensor(values, [1, values.length])]);
    let found = {};
    try {
      found = await signature.run(Object.fromEntries(tensors));
      const outputs = {};
      for (const [output, tensor] of Object.entries(found)) outputs[output] = (await tensor.data()).slice();
      return outputs;
    } finally {
      // The runtime's memory is freed by hand.
      for (const [, tensor] of [...tensors, ...Object.entries(found)]) if (!tensor.deleted) tensor.delete();
    }
  }
}
