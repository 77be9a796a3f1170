"""What a scheme is: how its numbers are stored, what each format makes of it, and which gates its files keep."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.kinds import OutputKind


class Gates(BaseModel):
    """Bounds on a file's differences from the reference, for one scheme. A recipe replaces the bounds that it names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)
    min_mean_cosine: float | None = None
    """Lowest mean cosine between the file's embeddings and those of fp32 PyTorch, the reference."""
    min_worst_cosine: float | None = None
    """Lowest cosine of any single text's embedding."""
    min_sqnr_db: float | None = None
    """Lowest signal-to-quantisation-noise ratio (SQNR) over all texts, in dB. At 20 dB the error is 10 % of the root
    mean square of the outputs, at 40 dB 1 %."""
    min_agreement: float | None = None
    """Lowest fraction of rows, tokens or spans that get the reference's label, or all of its labels; near ties of the
    reference do not count."""
    max_kl: float | None = None
    """Highest mean Kullback-Leibler divergence from the reference's probabilities to the file's, in nats."""
    max_abs_error: float | None = None
    """Highest absolute error of any output number, rows of padding alone left out. For outputs other than embeddings it
    is divided by the root mean square of the reference's outputs."""
    max_mean_shift: float | None = None
    """Highest mean shift of single numbers, in standard deviations of the reference. Rank metrics miss such a shift."""
    max_all_pad_error: float | None = None
    """Highest absolute value in the embedding of a row of padding alone; the reference is exactly zero."""
    max_pad_difference: float | None = None
    """Highest change of any output number when a text is padded to a longer length, in the unit of `max_abs_error`."""
    max_usual_pad_difference: float | None = None
    """The same without the 2 % of the texts that change most; of few texts, without one."""
    max_thread_difference: float | None = None
    """Highest difference between one thread and two, in the unit of `max_abs_error`."""
    max_task_drop: float | None = None
    """Highest loss of the task metric, as a fraction of 1. The loss has a 95 % interval: its good end has to keep this
    bound, and its bad end too if there are enough rows to tell."""
    min_recall_kept: float | None = None
    """Lowest share of fp32 PyTorch's recall@10 that search keeps in an index of the file's vectors in int8, over all
    queries of `verify.retrieval`; judged from 500 queries on."""
    min_recall_kept_small: float | None = None
    """The same for an index of bits, asked with float queries, and for int8 at half the width, where the student has
    that width."""
    max_bytes_per_parameter: float | None = None
    """Highest size of the file, in bytes per parameter of the student."""


BACKENDS = ("litert", "coreml", "executorch")
"""Names of the formats, each a folder of `pipeline/formats`; every row answers for every one."""
Stored = Literal["float32", "float16", "int8", "int4", "palette6", "palette4"]
"""What the numbers of a tensor are kept as in a file; of a palette, as indices of so many bits into a list."""
Granularity = Literal["tensor", "row", "block"]
"""Which weights share a scale; a block is some neighbouring columns of a row, as many as `Scheme.block`."""
Arithmetic = Literal["float", "dynamic_int8", "static_int8"]
"""What linears multiply. `dynamic_int8`: activations are quantised per token when the file runs, and multiplied as
integers. `static_int8`: over ranges of a whole tensor that calibration found."""
Line = str | tuple[float, tuple[float, ...]]
"""A line style of matplotlib."""
_BYTES: dict[Stored, float] = {
    "float32": 4.0,
    "float16": 2.0,
    "int8": 1.0,
    "int4": 0.5,
    "palette6": 0.75,
    "palette4": 0.5,
}
_SCALE_BYTES = 4
_PALETTE_BITS: dict[Stored, int] = {"palette6": 6, "palette4": 4}
NEWEST_IOS = 18
FUNCTIONS_FROM_IOS = 18
"""First release that reads Core ML packages with several functions."""
_FAR = 0.9
"""Cosine; a scheme that promises less for a worst text is not what one would ship."""


@dataclass(frozen=True)
class Support:
    """A format's answer for one scheme: what it makes of it, or why it does not support it."""

    reason: str | None = None
    """Why the scheme is unsupported; None where it is supported."""
    base: Stored = "float32"
    """What biases and norms are stored as, and what weights are rounded to before they are quantised."""
    ios: int = 15
    """Core ML: the oldest iOS release whose runtime reads such files."""
    sparse_ios: int | None = None
    """Core ML: the oldest iOS release that reads such weights stored without their zeros; None where none does."""
    untried_units: Mapping[str, str] = field(default_factory=dict)
    """Compute units on which no such file has passed yet, each with a sentence that says what is known; an app's
    self-test may try them, see `formats.compute_units`."""
    right_from: Mapping[str, str | None] = field(default_factory=dict)
    """Distribution of a runtime to its oldest release that keeps the gates; None where no release does.

    A runtime that is not listed is right in every release that was tried; `pocketbert compat` measures it.
    """


@dataclass(frozen=True)
class PlotMark:
    """How a scheme is drawn, the same in every plot."""

    marker: str
    line: Line
    hatch: str


@dataclass(frozen=True)
class Scheme:
    """One numeric format for weights and activations."""

    name: str
    summary: str
    weights: Stored
    """Matrices and embedding tables. Integers are symmetric; int8 is rounded to the nearest step of its scale."""
    granularity: Granularity | None
    """None where weights have no scale."""
    activations: Arithmetic
    """What linears read."""
    support: Mapping[str, Support]
    """By format, for all of `BACKENDS`."""
    mark: PlotMark
    gates: dict[OutputKind, Gates]
    block: int | None = None
    """How many neighbouring columns share a scale, where some do."""
    palette_rows: int | None = None
    """How many neighbouring rows of a matrix share a palette; None where all do, as those of a table always."""

    @property
    def weight_bytes(self) -> float:
        """Stored bytes per parameter, scales apart."""
        return _BYTES[self.weights]

    def file_bytes(self, table: int, others: int, table_bits: int) -> int:
        """Estimate the size of a file.

        Args:
            table: parameters of the table of words.
            others: all other parameters.
            table_bits: bits of tables where linears have 4.
        """
        of_table = table_bits / 8 if self.weights == "int4" else self.weight_bytes
        scales = _SCALE_BYTES / self.block if self.block else 0.0
        return int(table * of_table + others * (self.weight_bytes + scales))

    @property
    def palette_bits(self) -> int | None:
        """Bits of an index into a palette; None where weights have none."""
        return _PALETTE_BITS.get(self.weights)

    @property
    def calibrated(self) -> bool:
        """Whether files cannot be made of a student as it is: ranges, codes or palettes are chosen on text."""
        return self.activations == "static_int8" or self.chosen

    @property
    def takes_calibration(self) -> bool:
        """Whether calibration changes the checkpoint for the scheme, if only by SmoothQuant scales."""
        return self.activations != "float" or self.chosen

    @property
    def one_scale(self) -> bool:
        """Whether all of a weight or a table shares a scale."""
        return self.granularity == "tensor"

    @property
    def chosen(self) -> bool:
        """Whether each number of a weight is chosen on text, and is not the nearest to the student's."""
        return self.weights == "int4" or self.palette_bits is not None

    @property
    def shipping_rank(self) -> tuple[bool, float, int, float]:
        """Sort key; the scheme to ship comes first: fewest bytes per weight, then integer arithmetic, dynamic first.

        A scheme whose worst text may change a lot serves size alone, and comes last.
        """
        worst = self.gates["embedding"].min_worst_cosine or 0.0
        arithmetic = ("dynamic_int8", "static_int8", "float").index(self.activations)
        return worst < _FAR, self.weight_bytes, arithmetic, -worst

    def refusal_of_table(self, table_bits: int) -> str | None:
        """Return why an encoder without linears has no use for the scheme; None where its table has what it promises.

        Args:
            table_bits: bits of tables where linears have 4.
        """
        if self.activations == "static_int8":
            return "it is for an encoder's linears, and this one is a table. int8_weight_only stores that likewise."
        if self.weights == "int4" and table_bits > 4:
            return (
                "it has 4 bits for an encoder's linears, and this one is a table. quantize.table_bits = 4 gives that 4 "
                "bits, and int8_weight_only 8."
            )
        return None

    def rounds_activations(self, backend: str) -> bool:
        """Return whether a file computes in less than single precision."""
        return self.support[backend].base == "float16" or self.activations != "float"

    def refusal(self, backend: str, *, minimum_ios: int = NEWEST_IOS) -> str | None:
        """Return why a format does not support this scheme, or None if it does.

        Args:
            backend: one of `BACKENDS`.
            minimum_ios: the oldest iOS release that has to read the file; Core ML alone heeds it.
        """
        answer = self.support[backend]
        if answer.reason is None and minimum_ios < answer.ios:
            does = f"hold {self.weights} weights" if self.activations == "float" else "multiply int8 activations"
            return f"ML Programs {does} from iOS {answer.ios} on, and minimum_ios is {minimum_ios}."
        return answer.reason


@dataclass(frozen=True)
class Unsupported:
    """A scheme that was tried and that no format carries out: it has no files, and so neither gates nor a mark."""

    summary: str
    support: Mapping[str, Support]
    """By format, for all of `BACKENDS`; each has its reason."""

    def refusal(self, backend: str, *, minimum_ios: int = NEWEST_IOS) -> str | None:
        """Return why a format does not support it, as `Scheme.refusal` does."""
        return self.support[backend].reason
