"""Folders of static embeddings as they are published, and the same as a checkpoint: one table, one config, a tokenizer.

| layout | table | beside it |
|---|---|---|
| sentence-transformers | `embedding.weight`, in the folder of modules.json's StaticEmbedding | tokenizer.json |
| model2vec | `embeddings`, per token `weights` and a `mapping` of tokens to rows, if it has any | config.json |

`mapping` and `weights` are multiplied into the table, so that every later stage sees a row for each token. A vector is
what sentence-transformers computes of the folder: the mean over all tokens of a text, unknown ones included, and the
modules behind it. model2vec's own `encode` leaves unknown tokens out, and cuts a text at 512 tokens; its files for a
fixed length are cut there. Its `normalize` is read where there is no modules.json, which it writes beside.

Source: model2vec, `StaticModel.tokenize` and `save_pretrained`; sentence-transformers 6.2, `StaticEmbedding.load`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.architectures import static
from pipeline.errors import StudentError
from pipeline.text import tokenizers

_NAMES = ("embedding.weight", "embeddings")
MAPPING, _WEIGHTS = "mapping", "weights"
_FILE = "model.safetensors"


class Table(NamedTuple):
    """A table of static embeddings, by the header of its file."""

    name: str
    """Name of the tensor."""
    rows: int
    """Number of tokens."""
    width: int
    mapped: bool
    weighted: bool

    @property
    def config(self) -> dict[str, Any]:
        """The config.json of the checkpoint that is made of it."""
        return static.config_of(self.rows, self.width)

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Shapes of that checkpoint's tensors by name."""
        return {static.TABLE: (self.rows, self.width)}


def read(place: Path, shapes: Mapping[str, tuple[int, ...]]) -> Table:
    """Return the table of a folder.

    Args:
        place: where `sentences.table_folder` found it.
        shapes: of the tensors, by name.

    Raises:
        StudentError: there is none, or its tensors do not fit each other.
    """
    path = place / _FILE
    name = next((name for name in _NAMES if name in shapes), None)
    known = (*_NAMES, MAPPING, _WEIGHTS)
    lost = [one for one in shapes if one not in known]
    if name is None or lost or sum(one in shapes for one in _NAMES) > 1:
        raise StudentError(
            f"{path} has the tensors {', '.join(sorted(shapes))[:200]}; a table of static embeddings is "
            f"{' or '.join(_NAMES)}, and {MAPPING} and {_WEIGHTS} may stand beside it."
        )
    shape = shapes[name]
    if len(shape) != 2 or not all(shape):
        raise StudentError(f"{path}: {name} has shape {shape}; a table has a row for each token.")
    rows = shapes.get(MAPPING, shape[:1])
    weights = shapes.get(_WEIGHTS, rows)
    if len(rows) != 1 or weights != rows:
        raise StudentError(
            f"{path}: {name} has shape {shape}, {MAPPING} {shapes.get(MAPPING)}, {_WEIGHTS} {shapes.get(_WEIGHTS)}; "
            f"{MAPPING} has a row's number and {_WEIGHTS} a factor for each token."
        )
    return Table(name, rows[0], shape[1], MAPPING in shapes, _WEIGHTS in shapes)


def cut_shapes(shapes: Mapping[str, tuple[int, ...]], columns: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors behind `cut`."""
    return {name: (shape[0], columns) if name == static.TABLE else shape for name, shape in shapes.items()}


def cut(folder: Path, columns: int) -> None:
    """Keep the first columns of a checkpoint's table. Imports torch."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / _FILE)
    tensors[static.TABLE] = tensors[static.TABLE][:, :columns].contiguous()
    save_file(tensors, folder / _FILE, metadata={"format": "pt"})


def write(place: Path, out: Path) -> None:
    """Write the checkpoint of a folder: config, table, and the tokenizer without special tokens. Imports torch.

    Raises:
        StudentError: the mapping names rows that there are not.
    """
    import torch
    from safetensors.torch import load_file, save_file

    stored = load_file(place / _FILE)
    found = read(place, {name: tuple(tensor.shape) for name, tensor in stored.items()})
    table = stored[found.name]
    if found.mapped:
        numbers = stored[MAPPING].long()
        if int(numbers.min()) < 0 or int(numbers.max()) >= len(table):
            raise StudentError(
                f"{place / _FILE}: {MAPPING} has numbers from {int(numbers.min())} to {int(numbers.max())}, and "
                f"{found.name} has {len(table)} rows."
            )
        table = table[numbers]
    if found.weighted:
        # In single precision at least, as sentence-transformers does.
        table = (table.to(torch.promote_types(table.dtype, torch.float32)) * stored[_WEIGHTS][:, None]).float()
    save_file({static.TABLE: table.contiguous()}, out / _FILE, metadata={"format": "pt"})
    text = json.dumps(found.config, indent=2, sort_keys=True)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")
    tokenizers.copy(place, out)
    tokenizers.without_special_tokens(tokenizers.load_tokenizer(place)).save(str(out / "tokenizer.json"))
