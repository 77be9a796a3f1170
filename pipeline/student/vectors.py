"""The contract of a student's vectors: its space, and scales for int8 that are calibrated on the package's texts."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import architectures, tasks
from pipeline.checkpoint.files import read_json
from pipeline.errors import StudentError
from pipeline.heads.sentence import SentenceHead
from pipeline.metrics.measures import Floats, all_finite
from pipeline.student.outputs import reference_outputs
from pipeline.text.bundled import calibration_texts, everyday_sentences
from pipeline.text.encoding import Encoder
from pipeline.vectors.contract import LARGEST_CODE, Vectors, declared_space

_LENGTH = 128
_EVERY = 2
"""Stride over the calibration texts; all of them give no other scales, and take seconds."""
_STEPS_PER_OCTAVE = 16
"""Scales are rounded up to a geometric grid, by 4.4 % at most, so that another processor's last bits do not change
them."""
_HEADROOM = 1.5
"""How far scales reach beyond the calibration texts, which are shorter than passages. Without it half a percent of the
codes of a book's 9,439 passages were clipped, and int8 found 96 % of the ten nearest that single precision finds; with
it 99 %. Twice loses as much by coarser steps."""
_SMALLEST_SCALE = 2.0**-40
"""For a dimension that is zero on all texts."""
_ID_DIGITS = 16
_EMBEDDING = "embedding"


def contract(model: Any, folder: Path, head: SentenceHead) -> Vectors:
    """Return the contract of a student's vectors; the student runs over some hundred texts for it.

    Args:
        model: the student in torch.
        folder: its folder, laid out, with the tokenizer.
        head: what follows its encoder.

    Raises:
        StudentError: an embedding is not finite.
    """
    width = head.width(int(model.config.hidden_size))
    embeddings = _embeddings(model, folder, head)
    if not all_finite(embeddings):
        raise StudentError(
            "the student's embedding of a plain text is NaN or infinite, since its weights are too "
            "large for single precision. The checkpoint is damaged; download or train it again."
        )
    own = own_space(model, (folder / "tokenizer.json").read_bytes(), head)
    return Vectors(
        space=declared_space(read_json(folder / "config.json")) or own,
        width=width,
        unit_length=head.normalizes,
        similarity=head.similarity,
        widths=(width, *(one for one in head.widths if one < width)),
        scales=int8_scales(embeddings),
    )


def own_space(model: Any, tokenizer: bytes, head: SentenceHead) -> str:
    """Return the id of a student's own vector space; see `space_id`."""
    return space_id(
        ((name, tensor.detach().numpy()) for name, tensor in model.named_parameters()),
        tokenizer,
        head.model_dump_json(include={"pooling", "steps", "lower_case"}),
    )


def space_id(tensors: Iterable[tuple[str, Floats]], tokenizer: bytes, head: str) -> str:
    """Return the id of a student's own vector space: a digest of everything that decides its vectors.

    Format, scheme, sequence lengths and prompts are no part of it: files that passed verification are near enough to
    the student to share an index, and a prompt belongs to a text.

    Args:
        tensors: names and values of the student's parameters, in single precision.
        tokenizer: the content of its `tokenizer.json`.
        head: what follows the encoder, in a canonical form.
    """
    digest = hashlib.sha256(b"pocketbert vector space 1\0")
    for name, values in sorted(tensors, key=lambda one: one[0]):
        digest.update(f"{name} {values.shape}\0".encode())
        digest.update(np.ascontiguousarray(values, dtype="<f4").data)
    digest.update(hashlib.sha256(tokenizer).digest())
    digest.update(head.encode())
    return digest.hexdigest()[:_ID_DIGITS]


def int8_scales(vectors: Floats) -> tuple[float, ...]:
    """Return the scale of each dimension, by the largest magnitude that it has in some vectors, `(texts, width)`.

    The scales reach half as far again, see `_HEADROOM`.

    One scale for all dimensions, as vector stores commonly have it, gives most codes to the few dimensions that are
    much wider than the others.
    """
    largest = _HEADROOM * np.abs(vectors.astype(np.float64)).max(0) / LARGEST_CODE
    steps = np.ceil(_STEPS_PER_OCTAVE * np.log2(np.maximum(largest, _SMALLEST_SCALE)))
    # Eight digits, which every language's JSON reads as the same number.
    return tuple(float(f"{2.0 ** (step / _STEPS_PER_OCTAVE):.8g}") for step in steps)


def _embeddings(model: Any, folder: Path, head: SentenceHead) -> Floats:
    """Run a student over the calibration texts, as the documents of an index; `(texts, width)`.

    No labelled text is among them, so that no query or passage by which an index is judged took part.
    """
    limit = architectures.get(model.config.model_type).max_length(model.config.to_dict())
    encoder = Encoder.from_folder(folder, min(_LENGTH, limit, head.max_seq_length or limit))
    prompts = head.wanted
    prompt = prompts.text(prompts.of_documents)
    rows = [
        encoder.encode_prompted(prompt, text, pooled=prompts.pooled) if prompt else encoder.encode(text)
        for text in [*calibration_texts(), *everyday_sentences()][::_EVERY]
    ]
    return reference_outputs(model, tasks.get(_EMBEDDING), [row for row in rows if len(row)]).values
