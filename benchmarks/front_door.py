"""`make front-door`: what `init` says to the folders that people have, each in the hub's own layout; writes the page.

Nineteen kinds of folder, as a new user brought them, and what is easily ignored in silence: adapters, shards, pickles,
foreign tokenizers, half precision, quantised weights, unknown keys. Weights are random and small. Each is a process of
its own, as a user starts it, without network.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.coverage_folders import write
from benchmarks.coverage_rows import ROWS
from pipeline.atomic import write_text

REPOSITORY = Path(__file__).resolve().parent.parent
BUILD = REPOSITORY / "build" / "front-door"
PAGE = REPOSITORY / "docs" / "folders.md"
_WEIGHTS = "model.safetensors"


def _bare(folder: Path) -> None:
    """Drop what sentence-transformers wrote, as a folder of `save_pretrained` has it."""
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink(missing_ok=True)
    for place in folder.iterdir():
        if place.is_dir():
            shutil.rmtree(place)


def _edit(folder: Path, name: str, **values: Any) -> None:
    file = folder / name
    document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(document | values, indent=2), encoding="utf-8")


def _default_prompt(folder: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    _edit(folder, "config_sentence_transformers.json", prompts=prompts, default_prompt_name="query")


def _unknown_keys(folder: Path) -> None:
    _edit(folder, "config_sentence_transformers.json", truncate_dim=16, rescoring="twice")


def _adapter(folder: Path) -> None:
    """Write a LoRA adapter of every query projection beside what is there."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    tensors: dict[str, Any] = {}
    for layer in range(layers):
        place = f"base_model.model.encoder.layer.{layer}.attention.self.query.lora_"
        tensors |= {f"{place}A.weight": torch.randn(4, hidden), f"{place}B.weight": torch.randn(hidden, 4)}
    save_file(tensors, folder / "adapter_model.safetensors")
    _edit(
        folder,
        "adapter_config.json",
        peft_type="LORA",
        task_type="FEATURE_EXTRACTION",
        r=4,
        lora_alpha=8,
        target_modules=["query"],
        base_model_name_or_path="sentence-transformers/all-MiniLM-L6-v2",
    )


def _adapter_alone(folder: Path) -> None:
    _adapter(folder)
    for place in list(folder.iterdir()):
        if not place.name.startswith("adapter_"):
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def _shards(folder: Path) -> None:
    import transformers

    model = transformers.AutoModel.from_pretrained(folder)
    (folder / _WEIGHTS).unlink()
    model.save_pretrained(folder, max_shard_size="200KB")


def _pickle(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(folder / _WEIGHTS), folder / "pytorch_model.bin")
    (folder / _WEIGHTS).unlink()


def _half(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = {name: tensor.half() for name, tensor in load_file(folder / _WEIGHTS).items()}
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    _edit(folder, "config.json", dtype="float16")


def _quantised(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / _WEIGHTS)
    for name, tensor in tensors.items():
        if name.endswith("query.weight"):
            tensors[name] = (tensor * 100).round().char()
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    _edit(folder, "config.json", quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})


def _foreign_tokenizer(folder: Path) -> None:
    """Put the tokenizer of a model with fewer tokens beside it."""
    file = folder / "tokenizer.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {token: at for token, at in vocabulary.items() if at < len(vocabulary) // 2}
    document["added_tokens"] = [one for one in document["added_tokens"] if one["id"] < len(vocabulary) // 2]
    file.write_text(json.dumps(document), encoding="utf-8")


@dataclass(frozen=True)
class Case:
    """One folder: the encoder whose layout it has, and what was done to it."""

    letter: str
    what: str
    hub: str
    change: Callable[[Path], None] | None = None
    options: tuple[str, ...] = ()


CASES = (
    Case("a", "bge-small (BERT, [CLS], Normalize)", "BAAI/bge-small-en-v1.5"),
    Case("a2", "the same as a bare encoder, without modules.json", "BAAI/bge-small-en-v1.5", _bare),
    Case("a3", "the same, pooling given", "BAAI/bge-small-en-v1.5", _bare, ("--pooling", "cls")),
    Case("b", "all-mpnet-base-v2", "sentence-transformers/all-mpnet-base-v2"),
    Case("c", "distiluse (mean, Dense, tanh)", "sentence-transformers/distiluse-base-multilingual-cased-v2"),
    Case("d", "mdbr-leaf (mean, Dense, prompts)", "MongoDB/mdbr-leaf-mt"),
    Case("e", "e5-small with a default prompt", "intfloat/e5-small-v2", _default_prompt),
    Case("f", "paraphrase-multilingual-MiniLM", "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"),
    Case("g", "a cross-encoder with one label", "cross-encoder/ms-marco-MiniLM-L6-v2"),
    Case("h", "toxic-bert (six sigmoids)", "unitary/toxic-bert"),
    Case("i", "gte-modernbert", "Alibaba-NLP/gte-modernbert-base"),
    Case("i2", "an Ettin reranker", "cross-encoder/ettin-reranker-17m-v1"),
    Case("j", "a DeBERTa-v3 reranker", "mixedbread-ai/mxbai-rerank-xsmall-v1"),
    Case("k", "bert-base-NER", "dslim/bert-base-NER"),
    Case("l", "tinyroberta-squad2", "deepset/tinyroberta-squad2"),
    Case("m", "twitter-roberta, three classes", "cardiffnlp/twitter-roberta-base-sentiment-latest"),
    Case("n", "potion (model2vec)", "minishlab/potion-base-8M"),
    Case("n2", "a StaticEmbedding", "sentence-transformers/static-retrieval-mrl-en-v1"),
    Case("o", "a LoRA adapter alone", "sentence-transformers/all-MiniLM-L6-v2", _adapter_alone),
    Case("o2", "an adapter beside its base weights", "sentence-transformers/all-MiniLM-L6-v2", _adapter),
    Case("p", "weights in shards", "sentence-transformers/all-MiniLM-L6-v2", _shards),
    Case("q", "pytorch_model.bin alone", "sentence-transformers/all-MiniLM-L6-v2", _pickle),
    Case("r", "weights in half precision", "sentence-transformers/all-MiniLM-L6-v2", _half),
    Case("s", "a quantised checkpoint", "sentence-transformers/all-MiniLM-L6-v2", _quantised),
    Case("t", "another model's tokenizer", "sentence-transformers/all-MiniLM-L6-v2", _foreign_tokenizer),
    Case("u", "unknown keys of sentence-transformers", "sentence-transformers/all-MiniLM-L6-v2", _unknown_keys),
)
_HUB = "intfloat/e5-small-v2"


@dataclass(frozen=True)
class Said:
    """What `init` answered."""

    code: int
    lines: tuple[str, ...]
    seconds: float

    @property
    def shown(self) -> str:
        """The lines that tell what was assumed or what to do, in one."""
        if self.code:
            return " ".join(self.lines)
        told = ("task", "pooling", "vectors", "prompts", "limit", "labels", "weights", "note")
        rows = [line.split(maxsplit=1) for line in self.lines if " " in line]
        return "; ".join(f"{row[0]}: {row[1]}" for row in rows if row[0] in told and "no licence" not in row[1])


def make(case: Case, place: Path) -> None:
    """Write a case's folder."""
    write(next(row for row in ROWS if row.hub == case.hub), place)
    if case.change:
        case.change(place)


def ask(checkpoint: str, *options: str) -> Said:
    """Run `init` on a checkpoint, as a process of its own and offline."""
    recipe = BUILD / "recipe.toml"
    given = ["init", checkpoint, "--output", str(recipe), "--force", *options]
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "pipeline", *given],
        capture_output=True,
        text=True,
        check=False,
        cwd=BUILD,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLUMNS": "4000", "HF_HUB_OFFLINE": "1"},
    )
    text = (ended.stdout + ended.stderr).replace(str(BUILD), "")
    lines = [re.sub(r"\s+$", "", line) for line in text.splitlines() if line.strip()]
    return Said(ended.returncode, tuple(lines), time.monotonic() - began)


def page(answers: list[tuple[str, str, Said]]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield from (
        "# What `init` says to your folder",
        "",
        "Generated by `make front-door`: folders as the hub has them, with random weights, given to `pocketbert init`",
        "without network. A folder is taken, and what was assumed is said, or it is refused with the way on. Code 0",
        "means that a recipe was written.",
        "",
        "| folder | code | what is said |",
        "|---|--:|---|",
    )
    for _, what, said in answers:
        shown = said.shown.replace("|", "\\|")
        yield f"| {what} | {said.code} | {shown} |"


def main() -> int:
    """Write every folder, ask, print, and write the page."""
    parser = argparse.ArgumentParser(prog="make front-door", description=__doc__)
    parser.add_argument("--only", metavar="LETTER", help="one folder, shown in full; the page stays as it is")
    parser.add_argument("--list", action="store_true", help="name the folders and stop")
    options = parser.parse_args()
    if options.list:
        print("\n".join(f"{case.letter:3} {case.what}" for case in CASES))
        return 0
    BUILD.mkdir(parents=True, exist_ok=True)
    answers = []
    for case in CASES:
        if options.only and options.only != case.letter:
            continue
        place = BUILD / case.letter / case.hub.split("/")[1]
        if not place.is_dir():
            make(case, place)
        said = ask(str(place), *case.options)
        answers.append((case.letter, case.what, said))
        print(f"{case.letter} {case.what}: {said.code}, {said.seconds:.1f} s")
        print("\n".join(f"    {line}" for line in said.lines))
    if options.only:
        return 0
    answers.append(("v", "a hub name, offline", ask(_HUB)))
    print(f"v hub name: {answers[-1][2].code}, {answers[-1][2].seconds:.1f} s", *answers[-1][2].lines, sep="\n    ")
    write_text(PAGE, "\n".join(page(answers)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
