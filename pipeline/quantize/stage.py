"""Quantise stage: from a student to the checkpoint that a scheme's files are made of. Imports torch where it runs."""

import shutil
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import artifact, heads, tasks
from pipeline.checkpoint import ranges
from pipeline.data import calibration
from pipeline.data.corpus import Unlabelled
from pipeline.errors import ToolchainError
from pipeline.execution.worker import tell
from pipeline.quantize import policy
from pipeline.quantize.checkpoint import write_structure
from pipeline.recipe.schema import QuantizeSection, QuantizeTraining
from pipeline.schemes import SCHEMES, Scheme

VERSION = 4
_PALETTES_VERSION = 5
"""Version for palettes, whose centroids are found otherwise than in version 4; all else stayed."""
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
IDENTITY = 1e-5
"""Largest difference from the student that rounding weights to fp32 explains, over the outputs' root mean square."""
LENGTH = 128
"""Calibration texts are truncated to so many tokens."""
_BINS_KEPT = 128


@dataclass(frozen=True)
class QuantiseRequest:
    """The recipe's request for a quantised checkpoint, as far as verify can check it."""

    trained: bool = False
    eight_bits: tuple[str, ...] = ()
    """Paths of linears that have 8 bits where the scheme gives 4."""
    table_bits: int = 8
    """Bits of embedding tables where linears have 4."""


def section_for(section: QuantizeSection | None, scheme: str) -> QuantizeSection | None:
    """Return the settings of the quantised checkpoint for a scheme, or None if its files are made of the student."""
    row = SCHEMES[scheme]
    # Dynamic int8 also exists without SmoothQuant scales.
    if row.calibrated:
        return section or QuantizeSection()
    return section if row.takes_calibration else None


def calibration_set(section: QuantizeSection, recipe_file: Path, judged: Set[str] = frozenset()) -> list[Unlabelled]:
    """Return the calibration set of a recipe; see `calibration.texts` for the texts that it refuses or leaves out."""
    return calibration.texts(
        section.calibration,
        recipe_file,
        section.calibration_texts,
        seed=section.seed,
        key="quantize.calibration",
        default=calibration.texts_of_many_kinds,
        judged=judged,
    )


def make(
    student: Path,
    task_name: str,
    scheme: str,
    section: QuantizeSection,
    eight: tuple[str, ...],
    texts: Sequence[Unlabelled],
    out: Path,
) -> dict[str, Any]:
    """Calibrate a student for a scheme, and equalise or palettise it. Runs in a worker, since it imports torch.

    Args:
        student: the student artifact's folder.
        task_name: a row of `pipeline.tasks`.
        scheme: a row of `pipeline.schemes`, with int8 activations or weights quantised on text.
        section: `[quantize]` of the recipe.
        eight: paths of linears with 8 bits where the scheme gives 4.
        texts: the calibration set, without labels.
        out: the artifact's directory.

    Returns:
        Number of linears with scales around them, and the rewritten model's difference from the student in fp32; for
            other schemes see `_palettise` and `_round_weights`.

    Raises:
        InputError: there are too few texts, or the policy is for another student.
        ToolchainError: the outputs of the rewritten model differ from the student's.
    """
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.common import calibration_batches

    task = tasks.get(task_name)
    model = load_checkpoint(student, task)
    batches = calibration_batches(model, student, texts, LENGTH)
    shutil.copyfile(student / "config.json", out / "config.json")
    row = SCHEMES[scheme]
    if row.palette_bits is not None:
        return _palettise(model, row, batches, out)
    if row.chosen:
        return _round_weights(model, row, section, eight, batches, out)
    return _equalise(model, task, scheme, section, batches, out)


def trained(scheme: str, section: QuantizeSection | None) -> QuantizeTraining | None:
    """Return the settings for training a scheme's checkpoint, or None if it is not trained."""
    row = SCHEMES[scheme]
    learns = row.activations == "static_int8" or row.weights == "int4"
    return section.training if section and learns else None


def train(
    student: Path,
    quantised: Path,
    task_name: str,
    scheme: str,
    settings: QuantizeTraining,
    texts: Sequence[Unlabelled],
    checkpoints: Path,
    out: Path,
) -> dict[str, Any]:
    """Train a checkpoint of `make`; see `pipeline.quantize.training`. Runs in a worker, since it imports torch.

    Args:
        student: the student artifact's folder.
        quantised: the folder of the checkpoint that `make` wrote.
        task_name: a row of `pipeline.tasks`.
        scheme: a row of `pipeline.schemes` for which `trained` has settings.
        settings: the recipe's `[quantize.training]`.
        texts: training texts, without labels.
        checkpoints: folder from which an interrupted run continues.
        out: the artifact's directory.

    Returns:
        Distance of the outputs from the student's before and after, and the time it took.
    """
    from pipeline.quantize.training import QuantizeJob
    from pipeline.quantize.training import train as learn

    digests = [artifact.read_manifest(folder).key for folder in (student, quantised)]
    key = artifact.digest_of([VERSION, task_name, scheme, training_params(settings, texts), digests])
    job = QuantizeJob(key, student, quantised, task_name, scheme, settings, tuple(texts), checkpoints)
    return learn(job, tell, out)


def version(scheme: str) -> int:
    """Return the version of the code that makes a scheme's checkpoint."""
    return _PALETTES_VERSION if SCHEMES[scheme].palette_bits else VERSION


def training_params(settings: QuantizeTraining, texts: Sequence[Unlabelled]) -> dict[str, Any]:
    """Return everything that decides the result of `train`, besides the checkpoints."""
    kept = settings.model_dump(mode="json", exclude={"texts", "checkpoint_minutes"})
    return {"settings": kept, "texts": artifact.digest_of(texts)}


def _equalise(
    model: Any, task: tasks.Task, scheme: str, section: QuantizeSection, batches: calibration.Batches, out: Path
) -> dict[str, Any]:
    """Put scales around a model's linears, and write the checkpoint; see `make`."""
    import torch

    from pipeline.checkpoint import smoothquant
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.quantize.activations import linear_groups
    from pipeline.quantize.equalisation import WORTH, apply, equalise

    before = _outputs(model, task, batches)
    row = SCHEMES[scheme]
    static, one_scale = row.activations == "static_int8", row.one_scale
    groups = linear_groups(model, batches, seed=section.seed)
    if static:
        # A head's outputs are the file's outputs; as int8 they would have 256 values at most.
        groups = [group for group in groups if not any(_is_head(path, model) for path in group.paths)]
    worth = WORTH if section.equalisation else 0.0
    found = [
        equalise(group, static=static, observer=section.observer, worth=worth, one_scale=one_scale) for group in groups
    ]
    for group, one in zip(groups, found, strict=True):
        apply(group.linears, one)
    _write_weights(model, out)
    vectors: dict[str, torch.Tensor] = {}
    shared: dict[str, str] = {}
    for one in found:
        first, *others = one.paths
        if one.input_gain is not None:
            vectors[f"{first}.{ranges.INPUT_GAIN}"] = one.input_gain
            shared |= dict.fromkeys(others, first)
        after = zip(one.paths, one.output_gains, strict=True)
        vectors |= {f"{path}.{ranges.OUTPUT_GAIN}": gain for path, gain in after if gain is not None}
    smoothquant.write(vectors, shared, out)
    rewritten = load_checkpoint(out, task)
    unit = float(before.square().mean().sqrt()) or 1.0
    error = float((_outputs(rewritten, task, batches) - before).abs().max()) / unit
    if error > IDENTITY:
        raise ToolchainError(
            f"equalisation for {scheme} changed what the student computes in fp32 by {error:.1e} of its outputs; "
            f"{IDENTITY:.0e} is the most that rounding explains."
        )
    record = _record(scheme, section.observer if static else None, groups, found, batches.count, error)
    (out / ranges.FILE).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_structure(rewritten, out)
    return {
        "linears": len(record.linears),
        "input_gains": sum(one.input_gain is not None for one in found),
        "output_gains": sum(gain is not None for one in found for gain in one.output_gains),
        "identity_error": error,
        "texts": batches.count,
    }


def _is_head(path: str, model: Any) -> bool:
    return model.base_model is not model and not path.startswith(f"{model.base_model_prefix}.")


def _palettise(model: Any, row: Scheme, batches: calibration.Batches, out: Path) -> dict[str, Any]:
    """Palettise a model, and write the checkpoint; return the number of palettised weights and the largest error."""
    from pipeline.checkpoint import palettes as stored
    from pipeline.quantize.palettes import palettise

    assert row.palette_bits
    found = palettise(model, batches, bits=row.palette_bits, rows=row.palette_rows)
    stored.write({name: one.weight for name, one in found.items()}, out)
    weights = tuple(
        stored.Palettised(name=name, groups=len(one.weight.lut), error_nearest=one.error_nearest, error=one.error)
        for name, one in found.items()
    )
    record = stored.Record(scheme=row.name, texts=batches.count, weights=weights)
    _write_chosen(model, record, stored.RECORD, out)
    return {"palettes": len(found)} | _largest(record)


def _round_weights(
    model: Any, row: Scheme, section: QuantizeSection, eight: Sequence[str], batches: calibration.Batches, out: Path
) -> dict[str, Any]:
    """Quantise a model's weights to integers, and write the checkpoint.

    Returns:
        Number of weights with 4 and with 8 bits, and the largest error of a linear.
    """
    from torch import nn

    from pipeline.checkpoint import integers as stored
    from pipeline.quantize.integers import round_weights

    policy.check(eight, frozenset(path for path, module in model.named_modules() if isinstance(module, nn.Linear)))
    assert row.block
    found = round_weights(model, batches, block=row.block, table_bits=section.table_bits, eight=eight)
    stored.write({name: one.weight for name, one in found.items()}, out)
    weights = tuple(
        stored.Rounded(
            name=name,
            bits=one.weight.bits,
            block=one.weight.block,
            error_nearest=one.error_nearest,
            error=one.error,
        )
        for name, one in found.items()
    )
    record = stored.Record(scheme=row.name, texts=batches.count, weights=weights)
    _write_chosen(model, record, stored.RECORD, out)
    bits = Counter(one.bits for one in weights)
    return {"int4_weights": bits[4], "int8_weights": bits[8]} | _largest(record)


def _write_chosen(model: Any, record: ranges.QuantisedWeightsRecord, file: str, out: Path) -> None:
    _write_weights(model, out)
    (out / file).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")
    write_structure(model, out)


def _largest(record: ranges.QuantisedWeightsRecord) -> dict[str, Any]:
    return {"largest_error": max(record.errors().values(), default=None), "texts": record.texts}


def _write_weights(model: Any, out: Path) -> None:
    from safetensors.torch import save_file

    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.weights import WEIGHTS

    weights = {name: tensor.detach().contiguous() for name, tensor in shapes.named_once(model).items()}
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})


def _outputs(model: Any, task: tasks.Task, batches: calibration.Batches) -> Any:
    """Return the task's outputs for all tokens and rows, flattened into one vector.

    Computed in double precision, where the order of sums, which depends on the processor, changes nothing: a difference
    between two models lies in their weights.
    """
    import torch

    from pipeline.compress.prune.activations import batch_tensors

    found, head = [], heads.of(task, model)
    model.double()
    with torch.no_grad():
        for number in range(len(batches)):
            tensors = batch_tensors(batches, number)
            results = head.outputs(model(**tensors), tensors["attention_mask"].double())
            found += [one.flatten() for one in results]
    model.float()
    return torch.cat(found)


def _record(
    scheme: str, observer: str | None, groups: Sequence[Any], found: Sequence[Any], texts: int, error: float
) -> ranges.Ranges:
    linears = []
    for group, one in zip(groups, found, strict=True):
        sizes = group.inputs.abs().amax(0)
        for number, path in enumerate(one.paths):
            linears.append(
                ranges.Linear(
                    path=path,
                    alpha=one.alpha,
                    output_gain=one.output_gains[number] is not None,
                    error_before=one.error_before,
                    error=one.error,
                    largest_channel=float(sizes.max() / sizes.median().clamp(min=1e-12)),
                    input=_activation(one.input) if one.input else None,
                    output=_activation(one.outputs[number]) if one.outputs else None,
                    output_error=one.output_errors[number] if one.output_errors else None,
                    output_error_before=one.output_errors_before[number] if one.output_errors_before else None,
                )
            )
    return ranges.Ranges(
        scheme=scheme,
        observer=observer,
        texts=texts,
        tokens=max(len(group.inputs) for group in groups),
        identity_error=error,
        linears=tuple(linears),
    )


def _activation(observed: Any) -> ranges.Activation:
    histogram, (low, high) = observed.histogram, observed.kept
    counts = tuple(int(count) for count in histogram.counts.reshape(_BINS_KEPT, -1).sum(1))
    return ranges.Activation(low=low, high=high, lowest=histogram.low, highest=histogram.high, counts=counts)
