"""Which error a file's outputs look like: the reference that makes it fits far better than the right one."""

from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.foreign.record import Cause, Variant
from pipeline.formats.ports import Array
from pipeline.kinds import KINDS, OutputKind

_FAR_BETTER = 0.5
"""A reference with an error fits far better from half of the right one's error on. A right file never comes near: its
own rounding is no nearer to the error than the error is large."""
_LEAST_SHARE, _MOST_SHARE = 0.7, 1.3
"""Share of a mistake in a file's own error that shows it under any rounding, which has no direction: onnxruntime's int8
of MiniLM is .12 off, has .06 of dead token types if it is right, and .94 if they are dead."""
_SURE, _ROWS_OF_A_SHARE = 5.0, 6
"""Standard errors by which a share has to differ from none, and the rows that it takes to tell: of a mistake that is
far smaller than rounding, chance makes any share."""
_LEAST_NUMBERS = 100
"""Numbers that it takes as well, times the error over the mistake in squares: rounding of a few logits has a share of
many a mistake, since both are a few numbers."""
_DIFFERS = 1e-3
"""Relative difference from which on a row tells an error from the right reference."""
_LEAST_ROWS = 2
_UNIFORM = 4.0
"""Rounding is alike on every text: its worst error is a few times the usual one."""
_COARSE = 0.02
"""Relative error from which on rounding is coarse."""


def relative_error(first: Array, second: Array) -> float:
    """Return the difference of two rows' outputs, of the larger one's size: 0 for equal ones, and up to 2.

    Outputs of another shape, or that are not finite, are as far as can be.
    """
    if first.shape != second.shape or not (np.isfinite(first).all() and np.isfinite(second).all()):
        return 2.0
    a, b = first.astype(np.float64), second.astype(np.float64)
    size = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) / size if size > 0 else 0.0


def causes(
    reference: Sequence[Array], found: Sequence[Array], variants: Sequence[Variant], *, kind: OutputKind
) -> list[Cause]:
    """Return the errors that fit far better than the right reference, the best first.

    Args:
        reference: of each row, by the checkpoint.
        found: the file's.
        variants: references that make an error.
        kind: the task's kind of output.
    """
    against_reference = _errors(reference, found)
    fitting: list[tuple[float, Cause]] = []
    for variant in (*variants, *_made_of_outputs(reference, found, kind)):
        differs = np.array([relative_error(a, b) for a, b in zip(reference, variant.outputs, strict=True)]) > _DIFFERS
        if differs.sum() < _LEAST_ROWS:
            continue
        against_variant = _errors(variant.outputs, found)
        right, wrong = float(np.median(against_reference[differs])), float(np.median(against_variant[differs]))
        if wrong < _FAR_BETTER * right or _has_share(reference, found, variant.outputs, differs):
            cause = Cause(variant.name, variant.words, int(differs.sum()), right, wrong)
            fitting.append((float(against_variant.mean()), cause))
    return [cause for _, cause in sorted(fitting, key=lambda one: one[0])]


def _has_share(reference: Sequence[Array], found: Sequence[Array], wrong: Sequence[Array], rows: Array) -> bool:
    """Return whether a file's error has a mistake in it, by its projection onto it over the rows that show it."""
    along, size, error, numbers = [], [], 0.0, 0
    for number in map(int, np.flatnonzero(rows)):
        if found[number].shape == reference[number].shape == wrong[number].shape:
            mistake = (wrong[number] - reference[number]).astype(np.float64)
            along.append(float((mistake * (found[number] - reference[number])).sum()))
            size.append(float((mistake * mistake).sum()))
            error += float(((found[number] - reference[number]).astype(np.float64) ** 2).sum())
            numbers += mistake.size
    if len(size) < _ROWS_OF_A_SHARE or sum(size) * numbers < _LEAST_NUMBERS * error:
        return False
    share = sum(along) / sum(size)
    # Of a ratio of sums, by rows, since the numbers of a row are not independent of each other.
    residual = np.array(along) - share * np.array(size)
    uncertainty = float(np.sqrt((residual**2).sum())) / sum(size)
    return _LEAST_SHARE < share < _MOST_SHARE and share > _SURE * uncertainty


def _errors(expected: Sequence[Array], found: Sequence[Array]) -> Array:
    return np.array([relative_error(a, b) for a, b in zip(expected, found, strict=True)])


def mean_error(expected: Sequence[Array], found: Sequence[Array]) -> float:
    """Return the mean relative error of rows."""
    return float(_errors(expected, found).mean())


def nearest_error(
    reference: Sequence[Array], found: Sequence[Array], variants: Sequence[Variant], *, kind: OutputKind
) -> float:
    """Return the mean relative error against the nearest of the right reference and those with an error."""
    every = [reference, *(variant.outputs for variant in (*variants, *_made_of_outputs(reference, found, kind)))]
    return min(mean_error(one, found) for one in every)


def _made_of_outputs(reference: Sequence[Array], found: Sequence[Array], kind: OutputKind) -> Iterator[Variant]:
    """Yield the right outputs in the form that the file seems to have: fewer numbers, or another order of labels."""
    width, own = found[0].shape[-1], reference[0].shape[-1]
    same = all(a.shape[0] == b.shape[0] for a, b in zip(reference, found, strict=True))
    if not same or not all(np.isfinite(one).all() for one in found):
        return
    if kind == "embedding" and 1 < width < own:
        cut = [one[:, :width] for one in reference]
        words = f"the embedding is cut to its first {width} of {own} numbers"
        yield Variant("vector_cut", words, cut)
        yield Variant("vector_cut+normalised", f"{words} and normalised", [_unit(one) for one in cut])
    elif KINDS[kind].named and width == own:
        order = _order(np.concatenate(reference), np.concatenate(found))
        if order is not None:
            words = f"labels are in another order: the checkpoint's outputs {', '.join(map(str, order))}"
            yield Variant("label_order", words, [one[:, order] for one in reference])


def _unit(row: Array) -> Array:
    return row / max(float(np.linalg.norm(row)), 1e-12)


def _order(reference: Array, found: Array) -> list[int] | None:
    """Return which column of the reference each column of the file is, if that is a permutation and not their order."""
    distance = ((found[:, :, None] - reference[:, None, :]) ** 2).sum(0)
    order = [int(one) for one in distance.argmin(1)]
    return order if sorted(order) == list(range(len(order))) and order != sorted(order) else None


def by_size(reference: Sequence[Array], found: Sequence[Array]) -> Cause:
    """Return a name for an error that nothing fits, by its size on each text."""
    errors = _errors(reference, found)
    bad = sum(not np.isfinite(one).all() for one in found)
    if bad:
        return Cause("not_finite", f"NaN or infinity on {bad} of {len(found)} rows", bad)
    usual, worst = float(np.median(errors)), float(errors.max())
    if usual > _COARSE and worst < max(_UNIFORM * usual, 1.0) and usual < 0.5:
        words = (
            f"every text is off by about as much ({usual:.1%}, {worst:.1%} at worst): rounding that is too coarse, or "
            "scales that are wrong"
        )
        return Cause("scale", words, len(found), usual)
    if usual >= 0.5:
        words = f"its outputs have nothing to do with the checkpoint's ({usual:.0%} off on the usual text)"
        return Cause("unrelated", words, len(found), usual)
    far = int((errors > _COARSE).sum())
    words = f"no known error fits: {usual:.2%} off on the usual text, {worst:.1%} at worst, above 2 % on {far} rows"
    return Cause("unknown", words, far, usual)
