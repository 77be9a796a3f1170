"""The sections of a recipe that make a student smaller: settings alone, checked beside the stages that use them."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pipeline.recipe.fields import LayerNumber, Length, Names, Natural, Place, Section, Sparse, as_tuple

PartKept = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


Start = Literal["layers", "width", "random", "distilbert", "albert", "shared"]


class StartSection(Section):
    """Which student is made from the teacher."""

    kind: Start = "layers"
    """`layers`: some of the teacher's. `width`: the first columns of everything. `random`: only the shape.
    `distilbert`: some layers, without token types and pooler. `albert`: one layer's weights for all, in ALBERT's own
    class. `shared`: the same in the teacher's class."""
    teacher_layers: Literal["every_other"] | Annotated[tuple[LayerNumber, ...], BeforeValidator(as_tuple)] = (
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
    layers: Annotated[int | tuple[int, ...] | None, BeforeValidator(as_tuple), AfterValidator(_some)] = None
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
