"""The stage of `[static]`: an embedding's encoder gives way to a table of tokens, whose vectors stay in its space.

A text's vector is then the mean of its tokens' rows, which takes microseconds: an index of many documents is made by
the table, and asked by the encoder. Each row begins as what the encoder gives for the token alone, weighted down where
texts have it often; then the whole table is solved for the encoder's vectors of texts, by ridge regression towards
that beginning, so that tokens that no text has keep it. It needs no labels, and no training.

Source: Tulkens and van Dongen 2024 (model2vec), for a table of single tokens; its principal components are left out,
since they would leave the space. Arora et al. 2017 (SIF), for the weights.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline import architectures, tasks
from pipeline.architectures import static
from pipeline.checkpoint.source import Source
from pipeline.compress.common import SOURCE, Context, Stage, Work
from pipeline.compress.space import embedding, fitting
from pipeline.errors import RecipeError
from pipeline.execution.worker import tell
from pipeline.heads import sentence
from pipeline.heads.pooling import Pooling
from pipeline.heads.steps import Normalize
from pipeline.recipe.compression import StaticSection
from pipeline.student.stage import tokenizer_of
from pipeline.text import tokenizers
from pipeline.text.encoding import Row

VERSION = 1
DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "numpy", "scipy")
"""Packages that decide the table."""


def make(source: Path, section: StaticSection, texts: Sequence[str], out: Path) -> dict[str, Any]:
    """Write a static embedding in the space of an encoder. Runs in a worker, since it imports torch.

    Args:
        source: the encoder's folder, plain or compressed.
        section: `[static]` of the recipe.
        texts: unlabelled, in a random order.
        out: the artifact's directory.

    Returns:
        The chosen ridge penalty, and what a table of three quarters of the texts does to the last quarter: the mean
        and the least cosine to the encoder's vectors, the fraction of the encoder's vectors that find their own text
        first among the table's, and whether its space is shared, see `embedding.claim_space`.

    Raises:
        StudentError: the checkpoint does not load.
    """
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.space import bags

    encoder = load_checkpoint(source, tasks.get("embedding"))
    head, architecture = sentence.settings(encoder), architectures.get(encoder.config.model_type)
    documents = head.wanted.of_documents
    targets = embedding.vectors(encoder, source, texts, section.max_length, "the encoder", prompt=documents)
    with_special = tokenizer_of(source, head, architecture)
    prior = _single_tokens(encoder, with_special)
    table = begin(encoder)
    rows = embedding.rows(
        tokenizer_of(source, head, static.STATIC), sentence.settings(table), texts, section.max_length, documents
    )
    counted = bags.bags_of(rows, len(prior))
    prior *= bags.rarity(counted)[:, None]
    held_out = fitting.every_fourth(len(texts))
    tell("the table, on three quarters of the texts", 0.0)
    ridge, tried = bags.best_table(counted, targets, prior, held_out)
    tell("the table, on all texts", 0.8)
    _fill(table, bags.solve(counted, targets, prior, ridge=ridge, begin=tried))
    mapped = fitting.unit(counted[held_out] @ tried)
    claim = embedding.claim_space(table, embedding.space_of(source, encoder), targets[held_out], mapped)
    table.save_pretrained(out, safe_serialization=True, max_shard_size="10GB")
    tokenizers.copy(source, out)
    cosines = (mapped * fitting.unit(targets[held_out])).sum(1)
    return {
        "ridge": ridge,
        "tokens": len(prior),
        "tokens_in_texts": int((counted.getnnz(axis=0) > 0).sum()),
        "texts": len(texts),
        "held_out_texts": int(held_out.sum()),
        "held_out_mean_cosine": float(cosines.mean()),
        "held_out_least_cosine": float(cosines.min()),
        "held_out_found_first": fitting.found_among(targets[held_out], mapped, 1),
        **claim,
    }


def begin(encoder: Any) -> Any:
    """Return a static embedding of an encoder's vocabulary, width and prompts, uninitialised, on the encoder's device.

    Its head keeps only the end of the encoder's: whether vectors are scaled to unit length.
    """
    import torch

    from pipeline.architectures.static_model import StaticConfig, StaticModel, register

    register()
    head = sentence.settings(encoder)
    width = head.width(sentence.hidden_size(encoder.config))
    config = StaticConfig(**static.config_of(int(encoder.config.vocab_size), width))
    config.pad_token_id = int(encoder.config.pad_token_id or 0)
    with torch.device(next(encoder.parameters()).device):
        table: Any = StaticModel(config)
    kept: dict[str, Any] = {
        "pooling": Pooling(include_prompt=head.pooling.include_prompt),
        "steps": (Normalize(),) if head.normalizes else (),
        # A mean may be of any number of tokens.
        "max_seq_length": None,
    }
    sentence.attach(table, head.model_copy(update=kept), {})
    return table.eval()


def _single_tokens(encoder: Any, tokenizer: Any) -> NDArray[np.float64]:
    """Return the vector of each token alone between the special tokens that stand around a text, `(tokens, width)`."""
    tokenizer.no_truncation()
    sample = tokenizer.encode("a")
    special = [number for number, is_special in enumerate(sample.special_tokens_mask) if is_special]
    texts = [number for number in range(len(sample.ids)) if number not in special]
    before, after = (tuple(sample.ids[: texts[0]]), tuple(sample.ids[texts[-1] + 1 :]))
    count = len(before) + 1 + len(after)
    every = [Row((*before, token, *after), (0,) * count) for token in range(int(encoder.config.vocab_size))]
    return fitting.unit(embedding.of_rows(encoder, every, "single tokens"))


def _fill(table: Any, values: NDArray[np.float64]) -> None:
    import torch

    with torch.no_grad():
        table.get_input_embeddings().weight.copy_(torch.from_numpy(values))


def trial(source: Source) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`."""
    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint

    return shapes.outline(begin(load_checkpoint(source, tasks.get("embedding"))), source, compressed=False)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> StaticSection:
    assert context.recipe.static
    return context.recipe.static


def _check(context: Context, source: Source) -> None:
    embedding.check_task(context.recipe, "static")
    if source.architecture is static.STATIC:
        raise RecipeError("[static] makes a table of an encoder, and the student is a table already. Leave it out.")
    if context.recipe.rotate is not None:
        raise RecipeError(
            "[rotate] turns the table's vectors out of the encoder's space. Rotate the encoder in a recipe of its own, "
            "and name that one here: student.source = 'recipe:NAME'."
        )
    embedding.texts_of(context, "static", _section(context))


def _work(context: Context) -> Work:
    section = _section(context)
    params = embedding.params_of(context, "static", section)
    arguments = (SOURCE, section, embedding.texts_of(context, "static", section))
    return Work(VERSION, params, DISTRIBUTIONS, make, arguments, 400)


STATIC = Stage(
    "static",
    folder="static",
    origin="as a static table",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(source),
)
