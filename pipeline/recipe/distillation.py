"""The sections of a recipe by which a student learns from a teacher, or a masked-LM head from plain text.

They are settings alone, checked beside the stages that use them.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pipeline.recipe.fields import Fraction, LabelledUpdates, Layers, Names, Natural, Positive, Section, Updates
from pipeline.recipe.losses import LOSSES, PRESETS, Head


def _known_losses(weights: dict[str, float]) -> dict[str, float]:
    unknown = next((name for name in weights if name not in LOSSES), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} does not exist; there are: {', '.join(LOSSES)}")
    return weights


Weights = Annotated[dict[str, Positive], Field(min_length=1), AfterValidator(_known_losses)]


UNPRUNED = "unpruned"
"""The checkpoint of the recipe before compression."""
DEFAULT_TEMPERATURE = 2.0
DEFAULT_TEACHER_WEIGHT = 2.0
DEFAULT_NEIGHBOURS = 7


class AugmentSection(Section):
    """More training rows: copies with some words replaced.

    Source: Jiao et al. 2020 (TinyBERT), Algorithm 1; the defaults are its p_t, N_a and K.
    """

    probability: Fraction = 0.4
    """Probability with which a word is replaced."""
    copies: Natural = 20
    """Greatest number of copies of a row; a copy that equals the row or another copy is left out."""
    candidates: Natural = 15
    """Number of words among which a replacement is drawn."""
    model: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")] = UNPRUNED
    """The checkpoint whose masked-LM head and embedding table propose candidates: `unpruned`, the recipe's checkpoint
    before compression, or a source like `student.source`."""
    single_pieces: Literal["masked_lm", "neighbours"] = "masked_lm"
    """Where candidates for words of one token come from. Words of several tokens always take the nearest neighbours in
    the embedding table; `neighbours` does so for all words, for checkpoints without a masked-LM head."""


class DistilSection(LabelledUpdates):
    """How the student learns from a teacher: on a dataset, your own labelled files, or plain text.

    The metric is measured on `dataset` or `dev_file`.
    """

    @model_validator(mode="before")
    @classmethod
    def _begin_with_preset(cls, values: Any) -> Any:
        """Take the settings of `preset = "distilbert"`, say, where none are given."""
        if isinstance(values, Mapping) and values.get("space") is not None and not {"preset", "losses"} & values.keys():
            # Source: LEAF (Vujanic and Rueckstiess 2025), whose loss is the distance of the two models' vectors. In its
            # own space a smaller student learns similarities better than vectors (LOG.md).
            if values["space"] == "own":
                return {"neighbours": DEFAULT_NEIGHBOURS, **values, "losses": {"similarity": 1.0}}
            return {**values, "losses": {"sentence_mse": 1.0}}
        if not isinstance(values, Mapping) or "preset" not in values:
            return values
        given = dict(values)
        name = given.pop("preset")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset {name!r} does not exist; there are: {', '.join(PRESETS)}")
        return {key: value for key, value in PRESETS[name].items() if key != "epochs" or "steps" not in given} | given

    teacher: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")] = UNPRUNED
    """The checkpoint that teaches: `unpruned`, the recipe's checkpoint before compression, or a source like
    `student.source`."""
    losses: Weights
    """Losses and their weights; `pocketbert list` names the losses. Unless given, `sentence_mse` with
    `space = "teacher"`, and with `"own"` `similarity` and 7 `neighbours`."""
    neighbours: Annotated[int, Field(ge=1, lt=1000)] | None = None
    """For a loss that compares the texts of an update with each other: how many of a text's nearest, by the embeddings
    that are learned, come with it into the same update. Two texts by chance are hardly ever near, and teach little of
    how near texts differ. Unless given, updates are drawn by chance."""
    space: Literal["teacher", "own"] | None = None
    """`teacher`: the student's embeddings become the teacher's own, so that one index serves both. Where the widths
    differ, the student gets a linear into the teacher's width. `own`: it learns the mean of the unpruned checkpoint's
    embeddings and the teacher's, which an orthogonal map turns towards them. Unless given, a student's space is its
    own."""
    teacher_weight: Annotated[float, Field(gt=0, le=100)] = DEFAULT_TEACHER_WEIGHT
    """With `space = "own"`, the weight of the teacher's embeddings in that mean; the unpruned checkpoint's have 1."""
    alpha: Fraction = 0.0
    """Weight of the loss on labels; the losses of distillation get 1 − alpha. 0 needs no labels."""
    temperature: Annotated[float, Field(ge=0.1, le=100)] = DEFAULT_TEMPERATURE
    """Temperature by which `soft_targets` divides the logits of both models."""
    head: Head = "task"
    """The head whose logits are compared: `task`, or `masked_lm` on blocks of text with masked tokens."""
    teacher_layers: Literal["uniform"] | Layers = "uniform"
    """The teacher's layer, from 0, that each layer of the student is compared with; `uniform` takes the last one of
    each group where the teacher's layers are divided evenly among the student's."""
    relation_heads: Natural | None = None
    """Number of heads into which `relations` splits both models; the teacher's number of heads unless given."""
    texts: Names | None = None
    """Text without labels, instead of the dataset's training rows: files, one text a line, relative to the recipe;
    `wikitext2` or `war-and-peace` of the data folder; or datasets, whose training texts are taken, those of a pair
    apart."""
    augment: AugmentSection | None = None
    """More rows to train on: copies with some words replaced."""


class HeadSection(Updates):
    """How a tied masked-LM head is trained on plain text for an encoder that has none; the encoder stays as it is."""

    texts: Names
    """Plain text files, one text a line, relative to the recipe, or `wikitext2` and `war-and-peace` of the data
    folder."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Learning rate at the end of the warm-up, higher than for a whole model: most of the head is new."""
