"""Write a checkpoint whose tokenizer was trimmed: rows of the tables, and ids wherever a file has them."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from pipeline.checkpoint import architectures
from pipeline.checkpoint.source import WEIGHTS, read_json
from pipeline.compress.vocabulary.pieces import CONFIG_IDS, padding
from pipeline.compress.vocabulary.trim import Trimmed
from pipeline.errors import StudentError

_TABLES = ("embeddings.word_embeddings.weight", "embeddings.word_embeddings.0.weight")
"""Ends of the names of the table of words, whole or in two factors."""
_HEADS = (
    *(
        f"{head}.{tensor}"
        for head in ("predictions", "lm_head")
        for tensor in ("bias", "decoder.weight", "decoder.bias")
    ),
    *(f"{head}.{tensor}" for head in ("vocab_projector", "generator_lm_head") for tensor in ("weight", "bias")),
)
"""Ends of the names of masked-LM heads' tensors with a row for each piece."""
_COLUMNS = "predictions.dense.weight"
"""End of the name of the second half of MobileBERT's, whose first is the table: it has a column for each piece."""


def write(source: Path, trimmed: Trimmed, out: Path) -> dict[str, Any]:
    """Write config, weights and tokenizer into `out`; other files of the vocabulary are left behind.

    Returns:
        The metrics, with the bytes that weights and tokenizer lost.

    Raises:
        StudentError: there is no table of words, or a tensor of its size that is not known here.
    """
    _write_weights(source, trimmed, out)
    trimmed.tokenizer.save(str(out / "tokenizer.json"))
    _write_config(source, trimmed, out)
    _write_settings(source, trimmed, out)
    names = (WEIGHTS, "tokenizer.json")
    before = sum((source / name).stat().st_size for name in names if (source / name).is_file())
    saved = before - sum((out / name).stat().st_size for name in names)
    return trimmed.metrics | {"bytes_saved": saved}


def _write_weights(source: Path, trimmed: Trimmed, out: Path) -> None:
    tensors = load_file(source / WEIGHTS)
    tables = [name for name in tensors if name.endswith(_TABLES)]
    if len(tables) != 1:
        raise StudentError(f"{source / WEIGHTS} has {len(tables)} tables of words; one is known how to trim.")
    rows = tensors[tables[0]].shape[0]
    kept = torch.tensor(sorted(trimmed.ids))
    for name, tensor in tensors.items():
        if name.endswith((*_TABLES, *_HEADS)) and tensor.shape[0] == rows:
            tensors[name] = tensor[kept].contiguous()
        elif name.endswith(_COLUMNS) and tensor.shape[1] == rows:
            tensors[name] = tensor[:, kept].contiguous()
        elif rows in tensor.shape:
            raise StudentError(
                f"{source / WEIGHTS}: {name} is {tuple(tensor.shape)}, of the vocabulary's size, and it is not known "
                "here how to trim it. Save the checkpoint without that head."
            )
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})


def _write_config(source: Path, trimmed: Trimmed, out: Path) -> None:
    config = read_json(source / "config.json")
    config["pad_token_id"] = padding(config, architectures.get(config["model_type"]))
    config |= {key: trimmed.ids[config[key]] for key in CONFIG_IDS if isinstance(config.get(key), int)}
    config["vocab_size"] = len(trimmed.ids)
    _save(out / "config.json", config)


def _write_settings(source: Path, trimmed: Trimmed, out: Path) -> None:
    """Write the files beside the vocabulary, two of which name ids."""
    if (source / "special_tokens_map.json").is_file():
        shutil.copyfile(source / "special_tokens_map.json", out / "special_tokens_map.json")
    if (source / "tokenizer_config.json").is_file():
        settings = read_json(source / "tokenizer_config.json")
        listed = settings.get("added_tokens_decoder")
        if isinstance(listed, dict):
            # What tokenizer.json does not have for an added token may have left.
            here = {trimmed.ids.get(int(number)): row for number, row in listed.items()}
            settings["added_tokens_decoder"] = {str(number): row for number, row in here.items() if number is not None}
        _save(out / "tokenizer_config.json", settings)
    if (source / "added_tokens.json").is_file():
        listed = read_json(source / "added_tokens.json")
        later = {token: trimmed.ids.get(int(number)) for token, number in listed.items()}
        _save(out / "added_tokens.json", {token: number for token, number in later.items() if number is not None})


def _save(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
