"""The settings of distillation."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pipeline.distil.presets import PRESETS
from pipeline.section import Fraction, LabelledUpdates, Names, Natural, Positive, Section, Updates


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Weights = Annotated[dict[str, Positive], Field(min_length=1)]
Layers = Annotated[
    tuple[Annotated[int, Field(ge=1, le=1000)], ...], BeforeValidator(_listed), Field(min_length=1, max_length=1000)
]

UNPRUNED = "unpruned"
"""The checkpoint of the recipe before compression."""
Head = Literal["task", "masked_lm"]
DEFAULT_TEMPERATURE = 2.0


class AugmentSection(Section):
    """More rows to learn on: copies of the data's with some words replaced.

    Source: Jiao et al. 2020 (TinyBERT), Algorithm 1; the defaults are its p_t, N_a and K.
    """

    probability: Fraction = 0.4
    """With which a word is replaced."""
    copies: Natural = 20
    """Of each row, at most: a copy that is the row itself or another copy is left out."""
    candidates: Natural = 15
    """Words among which a replacement is drawn."""
    model: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")] = UNPRUNED
    """Of which masked-LM head and embedding table the candidates are: `unpruned`, or a source as `student.source` takes
    it."""
    single_pieces: Literal["masked_lm", "neighbours"] = "masked_lm"
    """Where words that are a single piece get their candidates from. Words of several always get the nearest neighbours
    in the embedding table, and `neighbours` does it for all, where no masked-LM head is at hand."""


class DistilSection(LabelledUpdates):
    """How the student learns from a teacher: on a data set, labelled files of one's own, or plain text.

    `dataset`, or `dev_file`, is also what the metric is measured on.
    """

    @model_validator(mode="before")
    @classmethod
    def _begin_with_preset(cls, values: Any) -> Any:
        """Take the settings of `preset = "distilbert"`, say, where none are given."""
        if not isinstance(values, Mapping) or "preset" not in values:
            return values
        given = dict(values)
        name = given.pop("preset")
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"preset {name!r} does not exist; there are: {', '.join(PRESETS)}")
        return {key: value for key, value in PRESETS[name].items() if key != "epochs" or "steps" not in given} | given

    teacher: Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$")] = UNPRUNED
    """`unpruned`: the recipe's checkpoint before compression; or a source as `student.source` takes it."""
    losses: Weights
    """Which ones, with their weights: `pocketbert list` tells them."""
    alpha: Fraction = 0.0
    """Weight of the hard labels; the losses get 1 − alpha. 0 needs no labels."""
    temperature: Annotated[float, Field(ge=0.1, le=100)] = DEFAULT_TEMPERATURE
    """Of `soft_targets`."""
    head: Head = "task"
    """Which head's logits are compared: the task's, or the masked-LM head's, on blocks of text with masked tokens."""
    layers: Literal["uniform"] | Layers = "uniform"
    """The teacher's layer, from 1, for each of the student's; `uniform`: its every (teacher's / student's layers)th."""
    relation_heads: Natural | None = None
    """Into how many heads `relations` splits both sides; the teacher's own number unless given."""
    texts: Names | None = None
    """Plain text files, relative to the recipe, or `wikitext2` and `war-and-peace` of the data folder, in the place of
    the data set's training texts; one text a line."""
    augment: AugmentSection | None = None
    """Copies of the rows with words replaced."""


class HeadSection(Updates):
    """How a tied masked-LM head is trained on plain text for an encoder that has none; the encoder stays as it is."""

    texts: Names
    """Plain text files, one text a line, relative to the recipe, or `wikitext2` and `war-and-peace` of the data
    folder."""
    learning_rate: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Higher than for a whole model: the head alone is trained, and most of it is new."""


Start = Literal["layers", "width", "random", "distilbert", "albert", "shared"]


class StartSection(Section):
    """Which student is made of the teacher."""

    kind: Start = "layers"
    """`layers`: some of the teacher's. `width`: the first columns of everything. `random`: only the shape.
    `distilbert`: some layers, without token types and pooler. `albert`: one layer's weights for all, in ALBERT's own
    class. `shared`: the same in the teacher's class."""
    layers: Literal["every_other"] | Annotated[tuple[Natural, ...], BeforeValidator(_listed)] = "every_other"
    """The teacher's layers that are kept, from 1; `every_other` begins with the first. `albert` and `shared` take the
    first of them for all, and have as many passes as the teacher has layers."""
    hidden_size: Natural | None = None
    """Of `width`; whole heads."""
    embedding_size: Natural | None = None
    """Of `albert`; the teacher's unless given."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Of `random`."""
