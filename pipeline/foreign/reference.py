"""The worker's side of a checkpoint: its rows, the reference's outputs, and those of references that make an error."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import architectures, heads, tasks
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.foreign.record import Variant
from pipeline.formats.ports import Array
from pipeline.heads import sentence
from pipeline.heads.sentence import DEFAULT
from pipeline.recipe.schema import StudentSection
from pipeline.student import assemble
from pipeline.student.outputs import label_names, reference_outputs
from pipeline.student.reference import EncodedTexts
from pipeline.text import tokenizers
from pipeline.text.bundled import Text, verification_texts
from pipeline.text.encoding import Encoder, Row
from pipeline.text.prompts import Prompts
from pipeline.vectors.contract import Similarity

_MOST_PROMPTS = 4
"""Prompts of which each is tried as one that the file adds by itself."""


@dataclass(frozen=True)
class Facts:
    """What the comparison needs to know of a checkpoint."""

    takes_types: bool
    pad_token_id: int
    first_position: int
    """The position of the first token, as Hugging Face numbers it."""
    hidden: int
    outputs: int | None
    """Width of the head's outputs; None for an embedding."""
    labels: tuple[str, ...] | None
    head: str
    prompts: Prompts
    compared_by: Similarity
    """How embeddings are compared."""
    activation: str


@dataclass(frozen=True)
class Sample:
    """A text with its row."""

    text: Text
    row: Row
    plain: Row
    """The row without its prompt, where it has one; else the same."""


@dataclass
class _Loaded:
    model: Any
    task: tasks.Task
    encoder: Encoder
    head: sentence.SentenceHead
    weights: Path


_loaded: _Loaded | None = None
"""In a worker process: the checkpoint."""


def open_checkpoint(folder: Path, task_name: str, section: StudentSection, scratch: Path, longest: int) -> Facts:
    """Load a checkpoint as the reference.

    Args:
        folder: a folder that was checked.
        task_name: a row of `tasks.py`.
        section: what is said of its head beside the folder.
        scratch: an empty folder for one config and one file of weights.
        longest: tokens to which its texts are truncated.

    Raises:
        StudentError: it does not load.
    """
    from pipeline.checkpoint.loading import load_checkpoint

    global _loaded
    task = tasks.get(task_name)
    assemble.make(folder, task_name, section, scratch)
    model = load_checkpoint(scratch, task)
    head = DEFAULT if task.uses_head else sentence.settings(model)
    tokenizer = tokenizers.load_tokenizer(folder)
    if head.lower_case:
        tokenizer = tokenizers.lower_cased(tokenizer)
    tokenizers.check_size(tokenizer, folder, vocab_size=model.config.vocab_size)
    _loaded = _Loaded(model, task, Encoder(tokenizer, longest), head, folder / WEIGHTS)
    row = architectures.get(model.config.model_type)
    config = model.config.to_dict()
    return Facts(
        takes_types="token_type_ids" in row.inputs,
        pad_token_id=row.padding_id(config),
        first_position=1 + row.padding_id(config) if row.positions_after_padding else 0,
        hidden=int(model.config.hidden_size),
        outputs=int(model.config.num_labels) if task.uses_head else None,
        labels=tuple(label_names(model.config)) if task.has_labels else None,
        head=type(model).__name__ if task.uses_head else head.chain,
        prompts=head.wanted,
        compared_by=head.compared_by,
        activation=str(config.get(row.keys.activation, "")),
    )


def parameters() -> int:
    """Return how many parameters the model has."""
    assert _loaded is not None
    return sum(parameter.numel() for parameter in _loaded.model.parameters())


def matrices() -> Iterator[tuple[str, Array]]:
    """Yield the model's matrices and tables by name; a pooler that the task leaves out is none of them."""
    assert _loaded is not None
    for name, parameter in _loaded.model.named_parameters():
        if parameter.ndim == 2:
            yield name, parameter.detach().numpy()


def samples(longest: int, count: int | None) -> list[Sample]:
    """Encode texts of verification, truncated to what the file takes.

    The texts of an embedding model come behind its default prompt if it has one, and a few behind each other prompt.

    Args:
        longest: tokens of the longest row that the file takes.
        count: how many texts, spread over all kinds; None for all.
    """
    assert _loaded is not None
    _loaded.encoder = encoder = _loaded.encoder.shortened(min(_loaded.encoder.max_length, longest))
    texts = verification_texts()
    if count is not None and count < len(texts):
        texts = [texts[at] for at in np.linspace(0, len(texts) - 1, count).round().astype(int)]
    prompts = _loaded.head.wanted
    found = []
    for text in texts:
        plain = encoder.encode(text.first, text.second)
        prompt = "" if text.second is not None else prompts.text(None)
        found.append(Sample(text, _behind(prompt, text.first) if prompt else plain, plain))
    book = EncodedTexts(encoder, _loaded.task, (), prompts)
    book.add_prompted()
    for text, row in zip(book.texts, book.rows, strict=True):
        prompt = prompts.texts[text.id.removeprefix("prompt-").rpartition("-")[0]]
        found.append(Sample(text, row, encoder.encode(text.first.removeprefix(prompt))))
    return found


def encoded(texts: Sequence[str], prompt: str) -> tuple[list[Sample], int]:
    """Encode texts of a user behind a prompt's text; return how many were truncated as well."""
    assert _loaded is not None
    found, truncated = [], 0
    for number, text in enumerate(texts):
        plain = _loaded.encoder.encode(text)
        row = _behind(prompt, text) if prompt else plain
        truncated += _loaded.encoder.truncates(prompt + text)
        found.append(Sample(Text(str(number), "own", text), row, plain))
    return found, truncated


def _behind(prompt: str, text: str) -> Row:
    assert _loaded is not None
    return _loaded.encoder.encode_prompted(prompt, text, pooled=_loaded.head.pooling.include_prompt)


def reference(rows: Sequence[Row]) -> list[Array]:
    """Return the reference's outputs, `(items, width)` each: fp32 PyTorch on unpadded rows."""
    assert _loaded is not None
    return list(reference_outputs(_loaded.model, _loaded.task, rows))


def embed(hidden: Sequence[Array], rows: Sequence[Row]) -> list[Array]:
    """Return the embeddings of a file's vectors of tokens, pooled by the checkpoint's own head.

    Args:
        hidden: `(tokens, hidden)` of each row.
        rows: the rows.
    """
    import torch

    from pipeline.foreign.variants import Hidden

    assert _loaded is not None
    head = heads.of(_loaded.task, _loaded.model)
    return [
        head.reference(Hidden(torch.from_numpy(one)[None]), row.unpooled)[0]
        for one, row in zip(hidden, rows, strict=True)
    ]


def erring(chosen: Sequence[Sample], lengths: Sequence[int]) -> list[Variant]:
    """Return references that make an error each, over samples that the file ran at these lengths."""
    from pipeline.foreign import variants

    assert _loaded is not None
    runs = [variants.Run(one.row, length) for one, length in zip(chosen, lengths, strict=True)]
    found = variants.all_of(_loaded.model, _loaded.task, _loaded.head, runs, _loaded.weights)
    return [*found, *_with_prompts(chosen)]


def _with_prompts(chosen: Sequence[Sample]) -> list[Variant]:
    """Return references for files that leave the text's own prompt out, or add one by themselves."""
    assert _loaded is not None
    result = []
    if any(one.row.ids != one.plain.ids for one in chosen):
        rows = [one.plain for one in chosen]
        words = "the prompt is missing: it gives what the model gives for the text without it"
        result.append(Variant("prompt_missing", words, reference(rows)))
    for name, prompt in itertools.islice(_loaded.head.prompts.items(), _MOST_PROMPTS):
        rows = [one.plain if one.text.second is not None else _behind(prompt, one.text.first) for one in chosen]
        words = f"the prompt {name!r} is put before every text, whatever it is given"
        result.append(Variant(f"prompt_added:{name}", words, reference(rows)))
    return result
