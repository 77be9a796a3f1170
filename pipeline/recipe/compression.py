"""The sections of a recipe that make a student smaller: settings alone, checked beside the stages that use them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline.recipe.fields import (
    Fraction,
    LabelledUpdates,
    Length,
    Names,
    Natural,
    Place,
    Positive,
    Section,
    Sparse,
    Updates,
)
from pipeline.recipe.losses import LOSSES, PRESETS, Head


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


PartKept = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


def _known_losses(weights: dict[str, float]) -> dict[str, float]:
    unknown = next((name for name in weights if name not in LOSSES), None)
    if unknown is not None:
        raise ValueError(f"{unknown!r} does not exist; there are: {', '.join(LOSSES)}")
    return weights


Weights = Annotated[dict[str, Positive], Field(min_length=1), AfterValidator(_known_losses)]


LayerNumber = Annotated[int, Field(ge=0, lt=1000)]
"""From 0, as in the checkpoint's `encoder.layer.0`."""

Layers = Annotated[tuple[LayerNumber, ...], BeforeValidator(_listed), Field(min_length=1, max_length=1000)]


UNPRUNED = "unpruned"
"""The checkpoint of the recipe before compression."""


DEFAULT_TEMPERATURE = 2.0


DEFAULT_TEACHER_WEIGHT = 2.0


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
            return {**values, "losses": {"similarity" if values["space"] == "own" else "sentence_mse": 1.0}}
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
    """Losses and their weights; `pocketbert list` names the losses. With `space`, `sentence_mse` unless given."""
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


Start = Literal["layers", "width", "random", "distilbert", "albert", "shared"]


class StartSection(Section):
    """Which student is made from the teacher."""

    kind: Start = "layers"
    """`layers`: some of the teacher's. `width`: the first columns of everything. `random`: only the shape.
    `distilbert`: some layers, without token types and pooler. `albert`: one layer's weights for all, in ALBERT's own
    class. `shared`: the same in the teacher's class."""
    teacher_layers: Literal["every_other"] | Annotated[tuple[LayerNumber, ...], BeforeValidator(_listed)] = (
        "every_other"
    )
    """The teacher's layers that are kept, from 0; `every_other` begins with the first. `albert` and `shared` take the
    first of them for all, and have as many passes as the teacher has layers."""
    hidden_size: Natural | None = None
    """Hidden size of a `width` start (whole heads) or of a `random` one; the teacher's unless given."""
    num_layers: Natural | None = None
    """The number of layers of a `random` start, instead of `teacher_layers`."""
    attention_heads: Natural | None = None
    """The attention heads of each layer of a `random` start; the teacher's unless given."""
    intermediate_size: Natural | None = None
    """The intermediate size of a `random` start; the teacher's unless given."""
    embedding_size: Natural | None = None
    """The embedding size of an `albert` start; the teacher's unless given."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the weights of a `random` start."""


class VocabularySection(Section):
    """Which tokens of the vocabulary are kept. With neither `size` nor `keep`: exactly those that the corpus needs."""

    corpus: Names | None = None
    """`.txt` files, one text a line, relative to the recipe; `wikitext2`, `war-and-peace` or `own-text` of the data
    folder; or names of datasets, whose training texts are taken. Without it every token that `languages` can write is
    kept."""
    languages: Names | None = None
    """ISO 639 codes of the languages of your texts. The characters of their scripts and ASCII's letters are kept. If
    the corpus leaves room in `size`, tokens of these scripts fill it first."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Number of tokens that are kept, special tokens included."""
    keep: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Fraction of the vocabulary that is kept, instead of `size`."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.size is not None and self.keep is not None:
            raise ValueError("size and keep say the same in two ways; give one of them")
        if self.corpus is None and self.languages is None:
            raise ValueError("names neither a corpus nor languages, by which tokens are chosen; give one or both")
        if self.corpus is None and (self.size is not None or self.keep is not None):
            raise ValueError(
                "size and keep need a corpus: languages of one script cannot be told apart by it, and the tokens that "
                "are most common in all of them spell a text of one in a third more tokens. Give a few thousand lines "
                "of each language, or leave size and keep out"
            )
        return self

    def kept_size(self, before: int) -> int | None:
        """Return the number of tokens to keep of `before`, or None for those that the corpus needs."""
        return round(self.keep * before) if self.keep is not None else self.size


COST_LENGTH = 128
"""Tokens of the row at which encoders are compared."""
STRUCTURE = ("compute", "attention_heads", "intermediate_size", "layers", "hidden_size")


def _some(value: int | tuple[int, ...] | None) -> int | tuple[int, ...] | None:
    if (isinstance(value, int) and value < 1) or value == ():
        raise ValueError("leaves no layer; give a number from 1 on, or a list of the numbers that stay")
    return value


class SparseNow(Sparse):
    """Weights that become zero at once, without training."""

    by: Literal["magnitude", "movement"] = "magnitude"
    """`movement` needs a loss: it is refused here, and belongs to `[train.sparse]` or `[distil.sparse]`."""


class PruneSection(Section):
    """How much of a student's encoder is kept. Usually `compute` alone: the search distributes it."""

    compute: PartKept | None = None
    """Fraction of the encoder's `costs` at `cost_length` tokens that is kept: 0.5 halves it. The attention heads
    and intermediate neurons that matter least go."""
    attention_heads: PartKept | None = None
    """Fraction of all attention heads of the layers that stay; each layer keeps one."""
    intermediate_size: PartKept | None = None
    """Fraction of all intermediate neurons of the layers that stay; each layer keeps `intermediate_multiple`."""
    layers: Annotated[int | tuple[int, ...] | None, BeforeValidator(_listed), AfterValidator(_some)] = None
    """The layers that stay, by number from 0; or how many stay, and the least important ones go."""
    hidden_size: Natural | None = None
    """Hidden size that stays, in all layers and embeddings. Needs training afterwards to be any good."""
    sparse: SparseNow | None = None
    """Unstructured pruning of the remaining weights: single ones become zero. Only Core ML stores them smaller, and no
    format is faster."""
    importance: Literal["optimal_brain_surgeon", "fisher", "taylor", "magnitude"] = "optimal_brain_surgeon"
    """How heads and neurons are ranked: see `pipeline.compress.prune.importance`."""
    reconstruct: bool = True
    """Solve the remaining linears by least squares for the unpruned student's outputs: no labels, no training."""
    refine: Annotated[int, Field(ge=0, le=100_000)] | None = None
    """Number of updates that bring an embedding back near the unpruned student's, without labels, on all texts of the
    calibration set's sources (and `wikitext2` and `war-and-peace`, if none are named and the data folder has them);
    fewer where they would be 20 passes. Unless given: 1000 for an embedding with at least 1000 such texts, and 0 for
    other tasks, before a `[distil]`, and without `reconstruct`."""
    refine_precision: Literal["no", "bf16"] = "no"
    """Precision of matrix products in these updates; `bf16` takes a third of the time on a CPU that has it, and longer
    than single precision on one that has not."""
    calibration: Names | None = None
    """The calibration set: `.txt` files, one text a line, relative to the recipe; `wikitext2` or `war-and-peace` of the
    data folder; or datasets, whose training rows are taken, pairs as pairs. Unless given: the package's own texts, and
    STS-B's sentences if `POCKETBERT_DATA` has them."""
    calibration_texts: Annotated[int, Field(ge=8, le=10_000)] = 512
    """Number of unlabelled calibration texts; the hidden states of all are in memory at once."""
    max_length: Length = 128
    """Number of tokens to which calibration texts are truncated."""
    costs: Literal["macs", "latency"] = "macs"
    """Unit of `compute`: MACs (multiply-adds), or milliseconds. Those are measured in LiteRT on int8_dynamic files of
    one layer, and differ from machine to machine and from run to run."""
    cost_length: Length = COST_LENGTH
    """Sequence length at which the cost counts."""
    intermediate_multiple: Annotated[int, Field(ge=1, le=256)] = 8
    """Each layer's intermediate size is a multiple of it, because runtimes compute so many neurons at once."""
    uniform: bool = False
    """Keep as many heads and intermediate neurons in each layer, which `[share]` needs, instead of the most important
    ones of all layers."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the sample of texts."""

    @property
    def counts(self) -> bool:
        """Whether heads and neurons are chosen, which may leave each layer another number of them."""
        return any(one is not None for one in (self.compute, self.attention_heads, self.intermediate_size))

    @property
    def cuts(self) -> bool:
        """Whether the student gets smaller; otherwise only single weights become zero."""
        return any(getattr(self, name) for name in STRUCTURE)

    @property
    def calibrated(self) -> bool:
        """Whether calibration texts are used; single weights become zero without them."""
        return self.cuts


class Rank(Section):
    """How ranks are chosen: one of the three."""

    rank: Natural | None = None
    """Rank of each matrix."""
    energy: PartKept | None = None
    """Fraction of each matrix's squared singular values that is kept, by the smallest multiple of 8 as its rank."""
    parameters: PartKept | None = None
    """Fraction of the parameters of all matrices together that is kept, shared out where it keeps most energy."""

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if sum(value is not None for value in (self.rank, self.energy, self.parameters)) != 1:
            raise ValueError("takes one of rank, energy and parameters")
        return self


def _number(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError("takes a whole number, the rank, or a table such as {energy = 0.95}")
    return {"rank": value} if isinstance(value, int) and not isinstance(value, bool) else value


Ranked = Annotated[Rank, BeforeValidator(_number)]


class FactoriseSection(Section):
    """Which matrices become low-rank factors. A whole number instead of a table is the rank."""

    embedding: Ranked | None = None
    """The embedding table: ALBERT's E; 64, 128 and 256 are published."""
    feed_forward: Ranked | None = None
    """Both linears of every feed-forward."""
    weighted: bool = True
    """Weigh errors by calibration texts: tokens by their counts, columns by their variance. False: plain SVD."""
    calibration: Names | None = None
    """The calibration set, as in `prune.calibration`."""
    calibration_texts: Annotated[int, Field(ge=8, le=100_000)] = 512
    """Number of unlabelled calibration texts."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the sample of texts."""

    @property
    def calibrated(self) -> bool:
        """Whether calibration texts are used."""
        return self.weighted


class ShareSection(Section):
    """Which layers use the same parameters."""

    what: Literal["all", "attention", "feed_forward"] = "all"
    """Which sublayers are shared; a LayerNorm belongs to the sublayer whose output it normalises."""
    groups: Natural = 1
    """Groups of consecutive layers that share; 1: all layers are one group."""
    start: Literal["average", "first", "middle"] = "average"
    """Initial parameters of a group: the mean of its layers, after their heads and neurons are matched, or those of one
    layer."""


class AdapterSection(Section):
    """A linear map that brings the student's vectors into an older model's space, so that its stored vectors stay.

    It is solved on unlabelled texts that both models read, and becomes a part of the student's head.
    """

    into: Place
    """The older model, named like `student.source`. It is not converted."""
    kind: Literal["ridge", "orthogonal"] = "ridge"
    """`ridge`: any affine map, by least squares with a ridge penalty that held-out texts choose. `orthogonal`: a
    rotation, which leaves the student's own cosines as they are and comes less near."""
    texts: Names
    """`.txt` files, one text a line, relative to the recipe; `wikitext2` or `war-and-peace` of the data folder; or
    datasets, whose training texts are taken. Texts like those of the index, thousands of them."""
    max_texts: Natural = 10_000
    """Largest number of texts; if there are more, a fixed sample is taken. A quarter is held out for the metrics."""
    max_length: Length = 128
    """Number of tokens to which texts are truncated."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the sample of texts."""


class RotateSection(Section):
    """An orthogonal map that turns an embedding so that its first numbers say most, without training.

    Cosines of whole embeddings stay what they are.
    """

    width: Natural | None = None
    """How many of the first numbers are kept; all unless given, for an app or an index to cut."""
    texts: Names | None = None
    """Calibration texts, named as in `adapter.texts`. Unless given: the package's own texts, and STS-B's sentences if
    `POCKETBERT_DATA` has them."""
    max_texts: Natural = 4096
    """Largest number of texts; if there are more, a fixed sample is taken."""
    max_length: Length = 128
    """Number of tokens to which texts are truncated."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the sample of texts."""


class StaticSection(Section):
    """An embedding's encoder gives way to a table with a row for each token, and its vectors stay in its space.

    A text's vector is the mean of its tokens' rows: worse, and a hundred times as fast. Many documents are indexed by
    it, and the encoder asks that index.
    """

    texts: Names
    """Unlabelled texts that the encoder reads once, named as in `adapter.texts`: texts like those of the index, ten
    thousand of them or more."""
    max_texts: Natural = 40_000
    """Largest number of texts; if there are more, a fixed sample is taken. A quarter is held out for the metrics."""
    max_length: Length = 128
    """Number of tokens to which texts are truncated."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of the sample of texts."""
