"""Convert with a fault planted, in a worker, by the pipeline's own `convert.make`."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from faults import catalogue
from faults.calibrated import Checkpoint
from faults.fault import Fault
from faults.file_faults import Planting
from pipeline import artifact, formats, tasks
from pipeline.artifact import Artifact
from pipeline.checkpoint import loading as checkpoint
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.convert import stage as convert
from pipeline.convert.stage import Target
from pipeline.data import calibration
from pipeline.errors import ToolchainError
from pipeline.formats.coreml.convert import _float_model, _graph
from pipeline.quantize import stage as quantize
from pipeline.recipe.schema import QuantizeSection, QuantizeTraining
from pipeline.schemes import SCHEMES

MINIMUM_IOS = 18
CALIBRATION_TEXTS = 64
Converted = dict[str, Any]
"""Metrics of `convert.make`, or `{"refused": message}`."""


class PlantingFailed(ToolchainError):
    """The bug is in the test bench: a fault could not be planted. Never a catch."""


def quantise(student_folder: Path, task: str, scheme: str, steps: int, out: Path) -> dict[str, Any]:
    """Calibrate a student for a scheme as the line does, and train what comes out by some updates, if any."""
    # As the line does: of English alone, training leaves words of other scripts to luck.
    texts = tuple(calibration.texts_of_many_kinds(CALIBRATION_TEXTS, seed=0))
    section = QuantizeSection(calibration_texts=CALIBRATION_TEXTS)
    with TemporaryDirectory(dir=out.parent) as scratch:
        calibrated, checkpoints = Path(scratch) / "calibrated", Path(scratch) / "checkpoints"
        calibrated.mkdir()
        first = calibrated if is_trained(scheme, steps) else out
        found = quantize.make(student_folder, task, scheme, section, (), texts, first)
        if first is out:
            return found
        from pipeline.quantize.training import QuantizeJob, train

        settings = QuantizeTraining(steps=steps, batch_size=16, max_length=32)
        job = QuantizeJob("key", student_folder, calibrated, task, scheme, settings, texts, checkpoints)
        return train(job, lambda what, fraction: None, out)


def is_trained(scheme: str, steps: int) -> bool:
    """Return whether a checkpoint is trained by so many updates; palettes are not."""
    return steps > 0 and not SCHEMES[scheme].palette_bits


def convert_clean(
    made: Artifact, target: Target, base: Path | None, quantised: Path | None, out: Path
) -> dict[str, Any]:
    """Convert one target as the line does."""
    gates = SCHEMES[target.scheme].gates[tasks.get(made.manifest.params["task"]).output_kind]
    lengths = tuple(made.manifest.params["lengths"])
    return convert.make(made, target, lengths, MINIMUM_IOS, base, quantised, gates, out)


def edit_quantised(name: str, checkpoint: Checkpoint) -> None:
    """Plant a fault in a copy of a quantised checkpoint, and let what it says of its model be true again."""
    with failures_named(catalogue.get(name)):
        catalogue.get(name).plant(checkpoint)
        checkpoint.restructure()


def convert_quantised(made: Artifact, target: Target, quantised: Path, out: Path) -> Converted:
    """Convert one target from a quantised checkpoint; return the metrics, or how convert refused."""
    try:
        return convert_clean(made, target, None, quantised, out)
    except Exception as error:  # a toolchain raises anything at all; the run checks that it was expected
        return refused(error)


def refused(error: Exception) -> Converted:
    """Say how convert refused."""
    return {"refused": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}


def convert_planted(name: str, made: Artifact, target: Target, base: Path | None, out: Path) -> Converted:
    """Convert one target of a faulty student or graph.

    Returns:
        The metrics, or how convert refused.

    Raises:
        PlantingFailed: the fault itself went wrong.
    """
    with planted(catalogue.get(name), out.parent):
        try:
            return convert_clean(made, target, base, None, out)
        except PlantingFailed:
            raise
        except Exception as error:  # a toolchain raises anything at all; the run checks that it was expected
            return refused(error)


@contextlib.contextmanager
def planted(fault: Fault, scratch: Path) -> Iterator[None]:
    """Plant a fault between checkpoint and toolchain while the context lasts."""
    clean_graph, clean_samples = checkpoint.export_graph, checkpoint.example_inputs

    def export_graph(folder: Path, *args: Any, **options: Any) -> Any:
        with TemporaryDirectory(dir=scratch) as edited:
            source = _planted_checkpoint(fault, folder, Path(edited)) if fault.level == "checkpoint" else folder
            graph = clean_graph(source, *args, **options)
        if fault.level == "graph":
            with failures_named(fault):
                fault.plant(graph)
        return graph

    def example_inputs(*args: Any) -> Any:
        samples = clean_samples(*args)
        return fault.plant(samples) if fault.level == "samples" else samples

    _forget_clean_models()
    with (
        mock.patch.object(checkpoint, "export_graph", export_graph),
        mock.patch.object(checkpoint, "example_inputs", example_inputs),
    ):
        yield
    _forget_clean_models()


def _forget_clean_models() -> None:
    """Core ML's backend keeps float models by the student's folder for the schemes of one run."""
    _graph.cache_clear()
    _float_model.cache_clear()


def _planted_checkpoint(fault: Fault, folder: Path, out: Path) -> Path:
    """Write an edited copy of a checkpoint."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / WEIGHTS)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with failures_named(fault):
        fault.plant(tensors, config)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, out / WEIGHTS, metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return out


def edit_file(
    name: str,
    student_folder: Path,
    target: Target,
    clean: dict[str, Path],
    stranger: Path,
    quantised: Path | None,
    out: Path,
) -> dict[str, Any]:
    """Plant a fault in the file of a copied model folder, and return what an honest manifest says of the file.

    Args:
        name: the fault.
        student_folder: the clean student.
        target: which file.
        clean: clean model folders by scheme.
        stranger: the same target's clean model folder of another student.
        quantised: the clean checkpoint of which the file is made, where it is not the student.
        out: the copy.
    """
    from safetensors.numpy import load_file

    fault, file = catalogue.get(name), formats.get(target.backend).FILE
    planting = Planting(
        file=out / file,
        tensors=load_file(student_folder / WEIGHTS),
        sibling=lambda scheme: clean[scheme] / file,
        stranger=stranger / file,
        quantised=quantised,
    )
    with failures_named(fault):
        fault.plant(planting)
    with contextlib.suppress(Exception):  # a file that cannot be read back is caught by that
        return dict(convert.figures(target.backend, out / file, formats.get(target.backend).structure(out / file)))
    return {"file_bytes": artifact.file_bytes(out / file)}


def plant_in_runtime(name: str) -> None:
    """Plant a fault in this process for good."""
    with failures_named(catalogue.get(name)):
        catalogue.get(name).plant()


@contextlib.contextmanager
def failures_named(fault: Fault) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise PlantingFailed(f"{fault.name} could not be planted: {type(error).__name__}: {error}") from error
