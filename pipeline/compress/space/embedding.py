"""Vectors of texts as a checkpoint gives them, and a linear in its head."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import architectures, tasks
from pipeline.artifact import digest_of
from pipeline.checkpoint.files import read_json
from pipeline.compress.common import Context
from pipeline.compress.space import fitting
from pipeline.compress.space.fitting import LinearMap, Vectors
from pipeline.data import calibration, corpus
from pipeline.data.retrieval import judged_texts
from pipeline.errors import InputError, RecipeError
from pipeline.execution.worker import tell
from pipeline.heads import sentence
from pipeline.heads.sentence import NAME, SentenceHead
from pipeline.heads.steps import Dense
from pipeline.recipe.compression import AdapterSection, RotateSection, StaticSection
from pipeline.recipe.schema import Recipe
from pipeline.student.outputs import reference_outputs
from pipeline.student.stage import tokenizer_of
from pipeline.student.vectors import own_space
from pipeline.text.encoding import Encoder, Row
from pipeline.vectors.contract import SPACE, declared_space

LearntSection = AdapterSection | RotateSection | StaticSection
_LEAST_TEXTS = 64
"""Fewer say little of a map with thousands of numbers, and a quarter of them is held out."""
_TEXTS_AT_ONCE = 256
NEAR = 0.9
"""Least fraction of texts that are found among the ten nearest of a thousand, of a model that shares another's space. A
search that loses more is better off with an index of its own, and no verdict of a file would say so."""
_TEXTS_OF_A_CLAIM = 1000


def check_task(recipe: Recipe, section: str) -> None:
    """Refuse a section that is for embeddings, in a recipe of another task.

    Raises:
        RecipeError: the task gives something else.
    """
    if tasks.get(recipe.task).output_kind != "embedding":
        raise RecipeError(f"[{section}] is for embeddings, and the task is {recipe.task}. Leave it out.")


def texts_of(context: Context, name: str, section: LearntSection) -> list[str]:
    """Return the texts of a section in a random order, so that any part of them is a sample; they are read once.

    Of a pair, each text is one by itself. For a static table half of them are joined to passages, as an index has them.

    Raises:
        InputError: they are absent or too few.
    """
    if name not in context.texts:
        key, draw = f"{name}.texts", np.random.default_rng(section.seed)
        if section.texts is None:
            found = calibration.default_texts(section.max_texts, seed=section.seed)
        else:
            found = corpus.texts(section.texts, context.recipe_file, key)
        found = calibration.unseen(found, judged_texts(context.recipe.verify.retrieval, context.recipe_file))
        each = (text for row in found for text in ((row,) if isinstance(row, str) else row))
        texts = list(dict.fromkeys(text.strip() for text in each if text.strip()))
        if len(texts) < _LEAST_TEXTS:
            raise InputError(
                f"{key}: {', '.join(section.texts or ())} hold {len(texts)} different texts; {_LEAST_TEXTS} or more "
                "are needed, and thousands are better."
            )
        long = corpus.passages(texts, section.max_length) if isinstance(section, StaticSection) else []
        joined = [long[number] for number in draw.permutation(len(long))[: section.max_texts // 2]]
        some = [texts[number] for number in draw.permutation(len(texts))[: section.max_texts - len(joined)]]
        if joined:
            every = [*joined, *some]
            some = [every[number] for number in draw.permutation(len(every))]
        context.texts[name] = some
    return context.texts[name]


def params_of(context: Context, name: str, section: LearntSection) -> dict[str, Any]:
    """Return the parameters of the key of a stage: its settings, and the digest of its texts."""
    settings = section.model_dump(mode="json", exclude={"into", "texts"})
    return {"settings": settings, "texts": digest_of(texts_of(context, name, section))}


def vectors(
    model: Any, folder: Path, texts: Sequence[str], max_length: int, about: str, *, prompt: str | None = None
) -> Vectors:
    """Return the embedding of each text in fp32, `(texts, width)`.

    Args:
        model: an embedding model, from `load_checkpoint`.
        folder: its checkpoint, which has the tokenizer.
        texts: in any order.
        max_length: number of tokens to which texts are cut, unless the model takes fewer.
        about: which model it is, for the progress.
        prompt: name of the prompt before each text; None for the model's default one, an empty name for none.
    """
    head, architecture = sentence.settings(model), architectures.get(model.config.model_type)
    limit = architecture.max_length(model.config.to_dict())
    tokenizer = tokenizer_of(folder, head, architecture)
    return of_rows(model, rows(tokenizer, head, texts, min(max_length, limit), prompt), about)


def rows(tokenizer: Any, head: SentenceHead, texts: Sequence[str], max_length: int, prompt: str | None) -> list[Row]:
    """Return texts behind a prompt, encoded; see `vectors`."""
    encoder, before = Encoder(tokenizer, min(max_length, head.max_seq_length or max_length)), head.wanted.text(prompt)
    return [encoder.encode_prompted(before, text, pooled=head.wanted.pooled) for text in texts]


def of_rows(model: Any, rows: Sequence[Row], about: str) -> Vectors:
    """Return the embedding of each encoded text in fp32, `(rows, width)`; see `vectors`."""
    # Texts of one length share a batch.
    order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
    width = sentence.settings(model).width(sentence.hidden_size(model.config))
    result = np.empty((len(rows), width), np.float64)
    for start in range(0, len(order), _TEXTS_AT_ONCE):
        part = order[start : start + _TEXTS_AT_ONCE]
        tell(f"{about}, {start} of {len(order)} texts", start / len(order))
        outputs = reference_outputs(model, tasks.get("embedding"), [rows[number] for number in part])
        for position, number in enumerate(part):
            result[number] = outputs[position][0]
    return result


def put_linear(model: Any, changed: SentenceHead, position: int) -> Any:
    """Give an embedding model a head with one linear more, in place, on any device; its numbers are uninitialised.

    Args:
        model: an embedding model.
        changed: the model's head with a dense step in it; steps with tensors are where they were.
        position: the number of the dense step.

    Returns:
        The linear.
    """
    import torch

    dense = changed.steps[position]
    assert isinstance(dense, Dense)
    device = next(model.parameters()).device
    kept = getattr(model, NAME).state_dict() if hasattr(model, NAME) else {}
    linear = torch.nn.Linear(dense.in_features, dense.out_features, bias=dense.bias, device=device)
    fresh = {f"{position}.linear.{name}": tensor for name, tensor in linear.state_dict().items()}
    sentence.attach(model, changed, None if device.type == "meta" else {**kept, **fresh})
    return getattr(model, NAME)[position].linear


def set_linear(linear: Any, mapped: LinearMap) -> None:
    """Write a linear map into a linear of its shape, in place."""
    import torch

    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(mapped.weight))
        if mapped.bias is not None:
            linear.bias.copy_(torch.from_numpy(mapped.bias))


def space_of(folder: Path, model: Any | None = None) -> str:
    """Return the id of the space that an embedding model's vectors are in, as its own signatures have it.

    Args:
        folder: the model's checkpoint.
        model: the same from `load_checkpoint`, where it is loaded already.
    """
    from pipeline.checkpoint.loading import load_checkpoint

    if (declared := declared_space(read_json(folder / "config.json"))) is not None:
        return declared
    model = load_checkpoint(folder, tasks.get("embedding")) if model is None else model
    head, architecture = sentence.settings(model), architectures.get(model.config.model_type)
    tokenizer = tokenizer_of(folder, head, architecture)
    return own_space(model, tokenizer.to_str(pretty=True).encode(), head)


def claim_space(model: Any, space: str, queries: Vectors, index: Vectors) -> dict[str, Any]:
    """Say in a model's config that its vectors are in another model's space, if texts that it was not fitted to agree.

    Args:
        model: the fitted model.
        space: id of the other model's space.
        queries: vectors of such texts by the model that asks, `(texts, width)`; the first thousand count.
        index: vectors of the same texts by the model whose vectors are searched.

    Returns:
        The fraction of texts that are found among the ten nearest, and whether the space is shared.
    """
    found = fitting.found_among(queries[:_TEXTS_OF_A_CLAIM], index[:_TEXTS_OF_A_CLAIM], 10)
    declare_space(model, space if found >= NEAR else None)
    return {"found_among_ten": found, "shares_space": found >= NEAR}


def declare_space(model: Any, space: str | None) -> None:
    """Say in a model's config, and so in config.json, to whose space it was fitted; None for its own."""
    if space is not None:
        setattr(model.config, SPACE, space)
    elif hasattr(model.config, SPACE):
        delattr(model.config, SPACE)
