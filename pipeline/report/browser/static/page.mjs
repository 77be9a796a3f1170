/** The page: choose a file, open it, see whether its golden rows hold here and how fast it is, and try a text. */

import {element, KINDS} from "./answers.mjs";
import {Characters} from "./characters.mjs";
import {accelerators, Runner} from "./runtime.mjs";
import {Student} from "./student.mjs";
import {Tokenizer, UnsupportedTokenizer} from "./tokenizer.mjs";

const NAMES = {wasm: "processor (WebAssembly, one thread)", webgpu: "graphics processor (WebGPU)"};
/** The text that is timed. Files take fixed lengths, so that any other of its length costs the same. */
const TIMED = {first: "The quick brown fox jumps over the lazy dog.", second: null};
const $ = (id) => document.getElementById(id);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const pause = () => new Promise((done) => setTimeout(done));

let offer;
let characters;
let opened = null;

/** Shows what the page does; `state` is what a test waits for. */
function say(text, state) {
  $("status").textContent = text;
  document.documentElement.dataset.state = state;
  for (const button of document.querySelectorAll("button")) button.disabled = state === "busy";
}

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: the server answered ${response.status}. ${await response.text()}`);
  return response;
}

const json = async (path) => (await fetched(path)).json();

/** Reads a file, and tells how much of it has come. */
async function bytes(path, size) {
  const whole = new Uint8Array(size);
  let at = 0;
  const reader = (await fetched(path)).body.getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    whole.set(part.value, at);
    at += part.value.length;
    say(`Fetching the file: ${megabytes(at)} of ${megabytes(size)} …`, "busy");
  }
  if (at !== size) throw new Error(`${path}: ${at} of ${size} bytes came; the connection broke off. Open it again.`);
  return whole;
}

/** Returns the file's tokenizer, or the reason why the page does not offer it. */
async function tokenizerOf(file) {
  try {
    return [new Tokenizer(await json(`${file.folder}/tokenizer.json`), characters), null];
  } catch (error) {
    if (!(error instanceof UnsupportedTokenizer)) throw error;
    return [null, `its tokenizer has ${error.message}, of which nobody has shown that this page gives the right ids`];
  }
}

async function open(file, accelerator) {
  opened = null;
  for (const id of ["results", "try"]) $(id).hidden = true;
  const [signature, golden] = [await json(`${file.folder}/signature.json`), await json(`${file.folder}/golden.json`)];
  const [tokenizer, refused] = await tokenizerOf(file);
  const content = await bytes(`${file.folder}/model`, file.model_bytes);
  say("Opening it in the runtime …", "busy");
  await pause();
  const runner = await Runner.open(content, accelerator);
  const student = new Student(signature, tokenizer, runner, characters);
  const found = await student.check(golden, async (done, all) => {
    say(`Golden rows: ${done} of ${all} …`, "busy");
    await pause();
  });
  const row = timedRow(student, golden);
  const timed = await student.measure(row, async (run) => {
    say(run < 0 ? "Warming up …" : `Timing: run ${run + 1} …`, "busy");
    await pause();
  });
  showFacts(file, runner, found, timed);
  opened = student;
  offerTexts(student, refused ?? (found.sameIds ? null : "its tokenizer gives other ids here than in Python"));
  say("", "ready");
}

/** Returns the row that is timed: a text, or where there is no tokenizer the shortest golden row. */
function timedRow(student, golden) {
  if (student.tokenizer) return student.encode(TIMED.first, TIMED.second);
  const rows = [...golden.rows].sort((one, other) => one.input_ids.length - other.input_ids.length);
  return {ids: rows[0].input_ids, types: rows[0].token_type_ids};
}

function showFacts(file, runner, found, timed) {
  const fact = (name, id, text, kind = "") => {
    const value = element("dd", kind, text);
    value.id = id;
    return [element("dt", "", name), value];
  };
  const held = found.failures.length === 0;
  const cosine = found.worstCosine === null ? "none" : found.worstCosine.toFixed(6);
  const sqnr = found.sqnrDb === null ? "none" : `${found.sqnrDb.toFixed(1)} dB`;
  const rows = `${found.held} of ${found.rows} hold; worst cosine ${cosine}, SQNR ${sqnr}`;
  $("facts").replaceChildren(
    ...fact("Golden rows", "golden", held ? rows : `${rows}: ${found.failures.join("; ")}`, held ? "passed" : "failed"),
    ...fact(
      "Latency",
      "latency",
      `p50 ${timed.p50.toFixed(1)} ms of ${timed.samples.length} runs at ${timed.length} tokens`,
    ),
    ...fact("File", "opened", `${file.target}, ${megabytes(file.model_bytes)}`),
    ...fact(
      "Runs on",
      "runs-on",
      NAMES[runner.accelerator] + (runner.isWhole === false ? ", in part WebAssembly" : ""),
    ),
    ...fact("Runtime", "runtime", `${offer.runtime}, a browser's runtime`),
    ...fact("Browser", "browser", navigator.userAgent),
  );
  $("facts").dataset.p50 = timed.p50;
  $("facts").dataset.golden = held ? "passed" : "failed";
  const random = file.random_weights ? " Nobody trained its weights: the answers mean nothing." : "";
  $("caveat").textContent =
    "Latency is of the runtime alone, without tokenisation, batch 1, while this page was open. It is what a web page " +
    `gets on this device; an app has another runtime, and other numbers.${random}`;
  $("results").hidden = false;
}

function offerTexts(student, refused) {
  const {fields} = KINDS[student.signature.output_kind];
  $("refused").hidden = refused === null;
  $("refused").textContent = refused === null ? "" : `Texts of your own are not offered for this file: ${refused}.`;
  $("ask").hidden = refused !== null;
  $("answer").replaceChildren();
  for (const [at, id] of ["first", "second"].entries()) {
    const [name, example] = fields[at] ?? ["", ""];
    $(`${id}-name`).textContent = name.replace("?", "");
    $(id).value = example;
  }
  $("second-label").hidden = fields.length < 2;
  const prompts = Object.keys(student.signature.prompts);
  $("prompt-label").hidden = prompts.length === 0;
  $("prompt").replaceChildren(new Option("none", ""), ...prompts.map((name) => new Option(name, name)));
  $("prompt").value = student.signature.default_prompt ?? "";
  $("try").hidden = false;
}

async function ask() {
  const student = opened;
  const kind = KINDS[student.signature.output_kind];
  say("Running …", "busy");
  await pause();
  const began = performance.now();
  const [runs, nodes] = await kind.ask(student, $("first").value, $("second").value, $("prompt").value || null);
  const whole = performance.now() - began;
  const rows = runs.map(({row}) => `${row.ids.length} tokens at ${student.pad(row).length}`).join(", ");
  const note = `${rows}; ${whole.toFixed(1)} ms with tokenisation, one pass`;
  $("answer").replaceChildren(...nodes, element("p", "note", note));
  say("", "ready");
}

/** Runs what a form asks for; whatever goes wrong is told on the page. */
function when(form, act) {
  $(form).addEventListener("submit", async (event) => {
    event.preventDefault();
    say("…", "busy");
    try {
      await act();
    } catch (error) {
      say(`It did not work: ${error.message ?? error}`, "failed");
    }
  });
}

async function begin() {
  say("Loading …", "busy");
  offer = await json("offer.json");
  characters = new Characters(await (await fetched("characters.txt")).text());
  document.title = `Try ${offer.recipe} in this browser`;
  $("recipe").textContent = offer.recipe;
  $("lead").textContent =
    "Each file below was verified against fp32 PyTorch on the machine that serves this page. Here your browser runs " +
    "it: whatever you type stays on this device.";
  $("file").replaceChildren(
    ...offer.files.map((file, at) => new Option(`${file.target} (${megabytes(file.model_bytes)})`, at)),
  );
  $("accelerator").replaceChildren(...(await accelerators()).map((name) => new Option(NAMES[name], name)));
  $("reasons").replaceChildren(...offer.absent.map(({target, reason}) => element("li", "", `${target}: ${reason}`)));
  $("absent").hidden = offer.absent.length === 0;
  when("choose", () => open(offer.files[$("file").value], $("accelerator").value));
  when("ask", ask);
  say("", "idle");
}

begin().catch((error) => say(`The page could not be set up: ${error.message ?? error}`, "failed"));
