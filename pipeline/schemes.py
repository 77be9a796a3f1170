"""Schemes: numeric formats of a converted file, one row each, with all that is known of them.

A row says how weights are stored, which formats carry the scheme out and why the others do not, and which gates its
files have to keep. A format's own `convert` says only how its toolchain is told. To add a scheme, add a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict

from pipeline.kinds import OutputKind

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""What each is: `pipeline.heads.pooling`."""


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


def _gates(
    *,
    cosine: float,
    worst: float,
    sqnr: float,
    agreement: float,
    kl: float,
    error: float | None,
    drop: float,
    pad: float,
    size: float,
    shift: float,
    spans_kl: float | None = None,
    usual_pad: float | None = None,
    threads: float | None = None,
) -> dict[OutputKind, Gates]:
    """Spell one scheme's default gates out for every kind of output."""
    embedding = Gates(
        min_mean_cosine=cosine,
        min_worst_cosine=worst,
        min_sqnr_db=sqnr,
        max_abs_error=error,
        max_all_pad_error=1e-6,
        max_pad_difference=pad,
        max_usual_pad_difference=usual_pad,
        max_thread_difference=threads or pad,
        max_task_drop=drop,
        min_recall_kept=0.99,
        min_recall_kept_small=0.97,
        max_bytes_per_parameter=size,
    )
    value = Gates(
        min_sqnr_db=sqnr,
        max_mean_shift=shift,
        max_pad_difference=pad,
        max_usual_pad_difference=usual_pad,
        max_thread_difference=threads or pad,
        max_task_drop=drop,
        max_bytes_per_parameter=size,
    )
    logits = value.model_copy(update={"max_mean_shift": None, "min_agreement": agreement, "max_kl": kl})
    # A softmax over all tokens of a row. Clean MobileBERT files of random weights: 1.2e-4 (fp16, 47 dB), .011 and .021
    # (int8, 27 and 24 dB).
    spans = logits.model_copy(update={"max_kl": spans_kl or kl})
    return {
        "embedding": embedding,
        "logits": logits,
        "value": value,
        "token_logits": logits,
        "spans": spans,
        "multi_label": logits,
        "values": value,
    }


def _static_gates(
    *, cosine: float, worst: float, sqnr: float, agreement: float, kl: float, drop: float
) -> dict[OutputKind, Gates]:
    return _gates(
        cosine=cosine,
        worst=worst,
        sqnr=sqnr,
        agreement=agreement,
        kl=kl,
        error=None,
        drop=drop,
        pad=5e-2,
        size=1.2,
        shift=0.15,
        spans_kl=5 * kl,
    )


def _int4_gates(*, pad: float) -> dict[OutputKind, Gates]:
    # Real MiniLM without training: .989 on average, .868 for a text in a script that its vocabulary spells letter by
    # letter.
    return _gates(
        cosine=0.98,
        worst=0.75,
        sqnr=12,
        agreement=0.92,
        kl=3e-2,
        error=None,
        drop=0.01,
        pad=pad,
        # Tables keep eight bits, and of a small student they are nearly all.
        size=1.2,
        shift=0.15,
        spans_kl=0.15,
    )


_NO_PHONES_GPU = {
    "GPU": "A software Vulkan ran such files whole and right; no phone's GPU has run one yet.",
}
_ANE_BLOCKS = (
    "The Neural Engine may compute weights with a scale per block wrongly, without an error: cosine .367 was reported "
    "where the GPU gave .999 (apple/coreai-models#279)."
)
_ANE_PALETTES = (
    "Core ML of iOS 18 computed 4-bit palettes of another model wrongly, cosine .63 on the Neural Engine and .03 on "
    "the CPU (apple/coremltools#2716), and stopped at an assertion for others on the GPU (#2688)."
)
_ANE_ZERO_POINTS = (
    "Published int8 activations on the Neural Engine have symmetric ranges; these have zero points, which nobody has "
    "reported on."
)


def _beyond_cpu(known: str) -> dict[str, str]:
    """Return Core ML's choices of compute units other than the CPU alone, with what is known of a scheme there."""
    return dict.fromkeys(("ALL", "CPU_AND_NE", "CPU_AND_GPU"), known)


_NOT_AT_RUN_TIME = (
    "Core ML has no activations that are quantised at run time; its int8 activations need calibrated ranges."
)
_NO_PALETTES = "{} has no weights that are indices into a palette; Core ML has."

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            "fp32",
            "weights and activations in single precision",
            weights="float32",
            granularity=None,
            activations="float",
            support={
                "litert": Support(untried_units=_NO_PHONES_GPU),
                "coreml": Support(sparse_ios=16),
                "executorch": Support(),
            },
            mark=PlotMark("o", "-", ""),
            gates=_gates(
                cosine=0.99999,
                worst=0.9999,
                sqnr=70,
                agreement=0.99,
                kl=1e-6,
                error=1e-4,
                drop=0.001,
                pad=1e-4,
                size=4.3,
                shift=1e-3,
            ),
        ),
        Scheme(
            "fp16",
            "weights in half precision; activations too where the runtime has it",
            weights="float16",
            granularity=None,
            activations="float",
            support={
                "litert": Support(),
                "coreml": Support(base="float16", sparse_ios=16),
                "executorch": Support(
                    "layer_norm in half precision is wrong in ExecuTorch 1.4.1 from 256 columns on (cosine .78 to .98)."
                ),
            },
            mark=PlotMark("s", (0, (6, 2)), "////"),
            gates=_gates(
                cosine=0.9999,
                worst=0.999,
                sqnr=45,
                agreement=0.99,
                kl=1e-5,
                error=5e-3,
                drop=0.002,
                pad=1e-2,
                size=2.15,
                shift=1e-2,
                spans_kl=5e-4,
            ),
        ),
        Scheme(
            "int8_weight_only",
            "weights and embedding tables in int8 with a scale per row, activations in float",
            weights="int8",
            granularity="row",
            activations="float",
            support={
                "litert": Support(),
                "coreml": Support(base="float16", ios=16, sparse_ios=18),
                "executorch": Support(),
            },
            mark=PlotMark("^", (0, (4, 2, 1, 2)), "...."),
            gates=_gates(
                cosine=0.998,
                worst=0.98,
                sqnr=20,
                agreement=0.97,
                kl=5e-3,
                error=None,
                drop=0.005,
                pad=1e-2,
                size=1.2,
                shift=0.1,
                spans_kl=3e-2,
            ),
        ),
        Scheme(
            "int8_dynamic",
            "int8 weights and embedding tables with a scale per row; activations to int8 per token, at run time",
            weights="int8",
            granularity="row",
            activations="dynamic_int8",
            support={
                # tflite-runtime 2.14 computes it silently wrong, LiteRT 1.0.1 outside its gates and seven times slower.
                "litert": Support(right_from={"ai-edge-litert": "1.2.0", "tflite-runtime": None}),
                "coreml": Support(_NOT_AT_RUN_TIME),
                "executorch": Support(),
            },
            mark=PlotMark("D", (0, (1.5, 1.5)), "xxxx"),
            gates=_gates(
                cosine=0.995,
                worst=0.96,
                sqnr=17,
                agreement=0.95,
                kl=1e-2,
                error=None,
                drop=0.01,
                # An activation at the edge of two steps flips when a sum comes out a last bit apart, as it does in
                # ExecuTorch at another length: on clean students by up to .071, and by .011 but for 2 % of the padded
                # texts (LOG.md). A mask of -5 changes nearly all of them: .048 at most, .037 but for 2 %.
                pad=1.5e-1,
                usual_pad=3e-2,
                threads=3e-2,
                size=1.2,
                shift=0.1,
                spans_kl=5e-2,
            ),
        ),
        Scheme(
            "int8_static",
            "int8 weights and embedding tables with a scale per row; linears in int8 over ranges found by calibration",
            weights="int8",
            granularity="row",
            activations="static_int8",
            support={
                # tflite-runtime 2.14 knows no linear with a scale per row that is read by int8, and refuses it.
                "litert": Support(untried_units=_NO_PHONES_GPU, right_from={"tflite-runtime": None}),
                "coreml": Support(base="float16", ios=17, untried_units=_beyond_cpu(_ANE_ZERO_POINTS)),
                "executorch": Support(),
            },
            mark=PlotMark("X", (0, (5, 1)), "oooo"),
            # Real MiniLM: .997 on average, .94 for a text in a script that its vocabulary spells letter by letter.
            gates=_static_gates(cosine=0.99, worst=0.91, sqnr=15, agreement=0.93, kl=2e-2, drop=0.01),
        ),
        Scheme(
            "int8_static_per_tensor",
            "as int8_static, with one scale for a whole weight or table, for runtimes that know no scale per row",
            weights="int8",
            granularity="tensor",
            activations="static_int8",
            support={
                "litert": Support(),
                "coreml": Support("Core ML reads a scale per row wherever it reads int8 activations: int8_static."),
                "executorch": Support("XNNPACK has always read a scale per row: int8_static."),
            },
            mark=PlotMark("<", (0, (7, 1, 1, 1)), "OO"),
            # Real MiniLM: .993 on average, .935 for a text in a script that its vocabulary spells letter by letter. Its
            # bound is below that of int8_static, which is shipped before it.
            gates=_static_gates(cosine=0.985, worst=0.90, sqnr=13, agreement=0.92, kl=3e-2, drop=0.015),
        ),
        Scheme(
            "int4_dynamic",
            "int4 weights with a scale per 32 columns, embedding tables in int8; activations to int8 per token",
            weights="int4",
            granularity="block",
            block=32,
            activations="dynamic_int8",
            support={
                # Before 2.1 LiteRT computes blocks silently wrong.
                "litert": Support(right_from={"ai-edge-litert": "2.1.0", "tflite-runtime": None}),
                "coreml": Support(_NOT_AT_RUN_TIME),
                "executorch": Support(),
            },
            mark=PlotMark("d", (0, (2, 1)), "\\\\\\\\"),
            gates=_int4_gates(pad=3e-2),
        ),
        Scheme(
            "int4_weight_only",
            "int4 weights with a scale per 32 columns, embedding tables in int8; activations in float",
            weights="int4",
            granularity="block",
            block=32,
            activations="float",
            support={
                "litert": Support(
                    "LiteRT's kernel for float activations and int4 blocks is silently wrong (cosine .23 on MiniLM)."
                ),
                "coreml": Support(base="float16", ios=18, untried_units=_beyond_cpu(_ANE_BLOCKS)),
                "executorch": Support("XNNPACK has no linear of float activations and int4 blocks."),
            },
            mark=PlotMark("p", (0, (1, 1)), "----"),
            gates=_int4_gates(pad=1e-2),
        ),
        Scheme(
            "palettize_6bit",
            "weights and embedding tables as indices of 6 bits into a palette per tensor, chosen on calibration text",
            weights="palette6",
            granularity=None,
            activations="float",
            support={
                "litert": Support(_NO_PALETTES.format("LiteRT")),
                "coreml": Support(base="float16", ios=16, untried_units=_beyond_cpu(_ANE_PALETTES)),
                "executorch": Support(_NO_PALETTES.format("XNNPACK")),
            },
            mark=PlotMark("v", (0, (3, 1, 1, 1, 1, 1)), "||||"),
            gates=_gates(
                cosine=0.998,
                worst=0.97,
                sqnr=20,
                agreement=0.97,
                kl=5e-3,
                error=None,
                drop=0.005,
                pad=1e-2,
                size=0.85,
                shift=0.1,
                spans_kl=3e-2,
            ),
        ),
        Scheme(
            "palettize_4bit",
            "the same with 4 bits, and a palette for every 16 rows of a matrix",
            weights="palette4",
            granularity=None,
            activations="float",
            support={
                "litert": Support(_NO_PALETTES.format("LiteRT")),
                "coreml": Support(base="float16", ios=18, untried_units=_beyond_cpu(_ANE_PALETTES)),
                "executorch": Support(_NO_PALETTES.format("XNNPACK")),
            },
            mark=PlotMark("P", (0, (1, 3)), "++++"),
            gates=_gates(
                cosine=0.97,
                worst=0.80,
                sqnr=10,
                agreement=0.9,
                kl=5e-2,
                error=None,
                drop=0.02,
                pad=1e-2,
                size=0.6,
                shift=0.2,
                spans_kl=0.3,
            ),
            palette_rows=16,
        ),
    )
}


@dataclass(frozen=True)
class Unsupported:
    """A scheme that was tried and that no format carries out: it has no files, and so neither gates nor a mark."""

    summary: str
    support: Mapping[str, Support]
    """By format, for all of `BACKENDS`; each has its reason."""

    def refusal(self, backend: str, *, minimum_ios: int = NEWEST_IOS) -> str | None:
        """Return why a format does not support it, as `Scheme.refusal` does."""
        return self.support[backend].reason


UNSUPPORTED: dict[str, Unsupported] = {
    "int8_static_int16": Unsupported(
        "int8 weights with a scale per row; linears in int16 over ranges found by calibration",
        {
            # Processor time at 128 tokens, one thread, ai-edge-litert 2.3.0: 588 and 33 ms without VNNI.
            "litert": Support(
                "LiteRT's kernel for int8 weights and int16 activations takes 18 times as long as int8_dynamic, "
                "measured on a processor without VNNI; another gave 50 times."
            ),
            "coreml": Support("Core ML's operation `quantize` gives int8 and uint8, and no int16."),
            "executorch": Support(
                "XNNPACK has no 16-bit integers among its types, and ExecuTorch 1.4.1 refuses to lower a linear that "
                'reads them ("Unsupported dtype for quantization").'
            ),
        },
    ),
}
"""Schemes that people ask for, with what was measured. One that a format makes is a row of `SCHEMES`."""


def supported(backend: str, *, minimum_ios: int = NEWEST_IOS) -> list[str]:
    """Return the names of the schemes that a format supports, in the order of the rows."""
    return [name for name, scheme in SCHEMES.items() if scheme.refusal(backend, minimum_ios=minimum_ios) is None]


SPARSE_STORAGE = {
    "litert": "no gain in this format: dense storage, dense kernels",
    "coreml": "smaller on disk where matrices are stored without their zeros, from iOS 16 on, with int8 from iOS 18 on",
    "executorch": "no gain in this format: XNNPACK's linears are dense",
}
"""What a format gains from weights that are zero."""
