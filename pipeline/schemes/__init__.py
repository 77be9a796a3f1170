"""Schemes: numeric formats of a converted file, one row each, with all that is known of them.

A row says how weights are stored, which formats carry the scheme out and why the others do not, and which gates its
files have to keep. A format's own `convert` says only how its toolchain is told. To add a scheme, add a row.
"""

from pipeline.schemes.bounds import gates, int4_gates, static_gates
from pipeline.schemes.scheme import (
    BACKENDS,
    FUNCTIONS_FROM_IOS,
    NEWEST_IOS,
    Arithmetic,
    Gates,
    Granularity,
    PlotMark,
    Scheme,
    Stored,
    Support,
    Unsupported,
)

__all__ = [
    "BACKENDS",
    "FUNCTIONS_FROM_IOS",
    "NEWEST_IOS",
    "SCHEMES",
    "SPARSE_STORAGE",
    "UNSUPPORTED",
    "Arithmetic",
    "Gates",
    "Granularity",
    "PlotMark",
    "Scheme",
    "Stored",
    "Unsupported",
    "supported",
]

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
            gates=gates(
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
            gates=gates(
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
            gates=gates(
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
            gates=gates(
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
            gates=static_gates(cosine=0.99, worst=0.91, sqnr=15, agreement=0.93, kl=2e-2, drop=0.01),
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
            gates=static_gates(cosine=0.985, worst=0.90, sqnr=13, agreement=0.92, kl=3e-2, drop=0.015),
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
            gates=int4_gates(pad=3e-2),
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
            gates=int4_gates(pad=1e-2),
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
            gates=gates(
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
            gates=gates(
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
