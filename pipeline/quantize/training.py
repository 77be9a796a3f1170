"""Quantisation-aware training: a quantised checkpoint learns the outputs of the student in fp32.

Linears round as the converted file does (`pipeline.quantize.fake`), so the trained model is the file's, and conversion
changes no code. Tables, SmoothQuant scales and ranges stay; linears, biases and norms are trained, on unlabelled text.

Two losses: the distance of each token's hidden state after each layer, relative to the student's; and that of the
outputs. Source: Jiao et al. 2020 (TinyBERT) and Zhang et al. 2020 (TernaryBERT) for distillation by both.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pipeline import artifact, heads, tasks
from pipeline.checkpoint import integers, ranges
from pipeline.checkpoint.loading import load_checkpoint
from pipeline.checkpoint.ranges import INNER, INPUT_GAIN, OUTPUT_GAIN, Training
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.compress.common import calibration_batches
from pipeline.data.calibration import Batches
from pipeline.data.corpus import Unlabelled
from pipeline.kinds import KINDS
from pipeline.quantize import checkpoint, fake
from pipeline.recipe.schema import QuantizeTraining
from pipeline.schemes import SCHEMES
from pipeline.text.encoding import Row

HIDDEN, OUTPUTS = "hidden_states", "outputs"
_WEIGHTS = {HIDDEN: 1.0, OUTPUTS: 5.0}
_HELD_OUT = 128
"""Most texts held out from training, on which outputs are compared with the student's."""
_HELD_OUT_SHARE = 0.1
_BATCH = 32


@dataclass(frozen=True)
class QuantizeJob:
    """Everything that a run of quantisation-aware training needs."""

    key: str
    """Sha256 over everything that decides the result; a checkpoint of another key is not used."""
    student: Path
    quantised: Path
    """Folder of the quantised checkpoint to train."""
    task: str
    scheme: str
    settings: QuantizeTraining
    texts: tuple[Unlabelled, ...]
    checkpoints: Path
    """Folder for checkpoints from which an interrupted run continues."""


def train(job: QuantizeJob, tell: Callable[[str, float], None], out: Path) -> dict[str, Any]:
    """Train a quantised checkpoint, and write the trained one.

    Args:
        job: the run's inputs.
        tell: called with a message and the fraction done.
        out: folder for the result, in the layout of the quantised checkpoint.

    Returns:
        Distance to the student before and after on held-out texts, and the time it took.

    Raises:
        InputError: there are too few texts, or the loss is not finite.
    """
    from pipeline.train import loop

    plan = loop.RunPlan(job.key, job.checkpoints, job.settings, "quantize.training", job.settings.passes)
    with loop.open_accelerator(plan) as accelerator:
        objective = QuantizeObjective(job, accelerator.device)
        before = objective.dev_metric(accelerator.device)
        objective.model.begin(objective.teacher)
        finished = loop.run(objective, plan, accelerator, tell)
        after = objective.dev_metric(accelerator.device)
    record = Training(
        texts=len(objective.lengths),
        held_out=len(objective.held_out),
        steps=finished.steps,
        seconds=finished.history.seconds,
        resumed_at=tuple(finished.history.resumed_at),
        distance_before=before,
        distance=after,
        first_loss=finished.history.curve[0]["loss"],
        final_loss=finished.history.curve[-1]["loss"],
    )
    objective.model.write(job, record, out)
    return record.model_dump(mode="json", exclude={"resumed_at"})


class RoundingStudent(nn.Module):
    """The quantised student with losses against the fp32 student; `forward` returns the losses."""

    def __init__(self, job: QuantizeJob) -> None:
        """Load the quantised checkpoint, and replace its linears by rounding ones."""
        super().__init__()
        self.task = tasks.get(job.task)
        row = SCHEMES[job.scheme]
        self.student = load_checkpoint(job.quantised, self.task)
        self._integers: dict[str, fake.FakeIntegerLinear] = {}
        if row.chosen:
            rounded = integers.read(job.quantised)
            self._integers = fake.insert_integers(self.student, rounded, dynamic=row.activations == "dynamic_int8")
        else:
            fake.insert_static(self.student, ranges.read(job.quantised))
        gains = tuple(f".{gain}.weight" for gain in (INPUT_GAIN, OUTPUT_GAIN))
        tables = {id(one.weight) for one in self.student.modules() if isinstance(one, nn.Embedding)}
        for name, parameter in self.student.named_parameters():
            parameter.requires_grad_(id(parameter) not in tables and not name.endswith(gains))

    @torch.no_grad()
    def begin(self, student: Any) -> None:
        """Reset linears of integers to the student's weights, on the scales that were chosen.

        From a dequantised value a weight has far to go to another code; MiniLM ends nearer to the student from here
        (LOG.md, 2026-11-26).
        """
        source = dict(student.named_parameters(remove_duplicate=False))
        for name, linear in self._integers.items():
            linear.weight.copy_(source[name])

    def forward(self, inputs: Mapping[str, Tensor], teacher: "Outputs") -> dict[str, Tensor]:
        """Return the sum of each loss over its items."""
        mine = Outputs.of(self.student, self.task, inputs)
        mask = inputs["attention_mask"].bool()
        layers = zip(mine.hidden_states[1:], teacher.hidden_states[1:], strict=True)
        hidden = torch.stack([_relative(got, true)[mask].sum() for got, true in layers])
        return {HIDDEN: hidden.mean(), OUTPUTS: mine.distances(teacher, self.task, mask).sum()}

    def write(self, job: QuantizeJob, record: Training, out: Path) -> None:
        """Write the trained checkpoint; see `train`."""
        from safetensors import safe_open
        from safetensors.torch import save_file

        trained = dict(self.student.named_parameters(remove_duplicate=False))
        rounded = {name: one.integers() for name, one in self._integers.items()}
        # Not their modes: a finished artifact's files cannot be written.
        for file in job.quantised.iterdir():
            if file.name != artifact.MANIFEST:
                shutil.copyfile(file, out / file.name)
        weights = {}
        with safe_open(job.quantised / WEIGHTS, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                path, _, kind = name.rpartition(".")
                inner = trained.get(f"{path}.{INNER}.{kind}", trained.get(name))
                tensor = stored.get_tensor(name) if inner is None else inner.detach().cpu()
                weights[name] = torch.from_numpy(rounded[name].dense()) if name in rounded else tensor.contiguous()
        save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
        if rounded:
            integers.write(integers.read(job.quantised) | rounded, out)
        file_name, known = checkpoint.read_record(job.quantised)
        document = known.model_copy(update={"training": record})
        (out / file_name).write_text(document.model_dump_json(indent=1) + "\n", encoding="utf-8")
        checkpoint.write_structure(load_checkpoint(out, self.task), out)


@dataclass(frozen=True)
class Outputs:
    """The hidden states and task outputs of a model for a batch."""

    hidden_states: tuple[Tensor, ...]
    """Outputs of the embeddings and of each layer, `(batch, seq_len, hidden)`."""
    outputs: tuple[Tensor, ...]
    """Outputs of the task, as in the exported graph."""

    @classmethod
    def of(cls, model: Any, task: tasks.Task, inputs: Mapping[str, Tensor]) -> "Outputs":
        """Run a model on a batch."""
        found = model(**inputs, output_hidden_states=True)
        return cls(tuple(found.hidden_states), heads.of(task, model).outputs(found, inputs["attention_mask"].float()))

    def distances(self, teacher: "Outputs", task: tasks.Task, mask: Tensor) -> Tensor:
        """Return the squared distance of each row's or token's outputs, relative to the size of the teacher's."""
        found = []
        for mine, true in zip(self.outputs, teacher.outputs, strict=True):
            if not KINDS[task.output_kind].per_token:
                found.append(_relative(mine, true))
            elif mine.ndim == 3:
                found.append(_relative(mine, true)[mask])
            else:
                found.append(_relative(mine * mask, true * mask))
        return torch.cat(found)


def _relative(mine: Tensor, true: Tensor) -> Tensor:
    """Return |mine - true|² / |true|² over the last axis; |true|² counts as a tenth of its mean if it is smaller."""
    sizes = true.square().sum(-1)
    return (mine - true).square().sum(-1) / torch.maximum(sizes, 0.1 * sizes.mean()).clamp(min=1e-12)


class QuantizeObjective:
    """The objective of quantisation-aware training, for `pipeline.train.loop`."""

    uses_all_parameters = False
    near = None
    weights: Mapping[str, float] = _WEIGHTS

    def __init__(self, job: QuantizeJob, device: torch.device) -> None:
        """Load student and quantised checkpoint, and encode the texts."""
        self.job = job
        self.teacher = load_checkpoint(job.student, tasks.get(job.task)).to(device).eval()
        self.model = RoundingStudent(job).to(device)
        known = calibration_batches(self.teacher, job.student, job.texts, job.settings.max_length)
        self._batches = known
        every = [row for batch in known.rows for row in batch]
        order = np.random.default_rng(job.settings.seed).permutation(len(every))
        count = min(_HELD_OUT, int(_HELD_OUT_SHARE * len(every)))
        self.held_out = [every[at] for at in order[:count]]
        self._rows = [every[at] for at in order[count:]]
        self.lengths: NDArray[np.int64] = np.array([len(row) for row in self._rows], np.int64)

    def count_items(self, rows: NDArray[np.int64], step: int) -> Mapping[str, int]:
        """Return the number of items of each loss in all rows of an update."""
        tokens = int(self.lengths[rows].sum())
        kind = self.model.task.output_kind
        return {HIDDEN: tokens, OUTPUTS: tokens if kind == "token_logits" else len(rows)}

    def losses(self, wrapped: Any, rows: NDArray[np.int64], step: int, device: torch.device) -> Mapping[str, Tensor]:
        """Return the sum of each loss over some rows of an update."""
        inputs = self._inputs([self._rows[at] for at in rows], device)
        with torch.no_grad():
            teacher = Outputs.of(self.teacher, self.model.task, inputs)
        sums: Mapping[str, Tensor] = wrapped(inputs, teacher)
        return sums

    def _inputs(self, rows: Sequence[Row], device: torch.device) -> dict[str, Tensor]:
        batch = Batches((tuple(rows),), self._batches.names, self._batches.pad_token_id)
        return {name: torch.from_numpy(array).to(device) for name, array in batch.arrays(0).items()}

    @torch.no_grad()
    def dev_metric(self, device: torch.device) -> float:
        """Return the mean squared distance of the outputs on held-out texts, relative to the size of the student's."""
        self.model.eval()
        found = []
        for start in range(0, len(self.held_out), _BATCH):
            inputs = self._inputs(self.held_out[start : start + _BATCH], device)
            mine, teacher = (Outputs.of(one, self.model.task, inputs) for one in (self.model.student, self.teacher))
            found.append(mine.distances(teacher, self.model.task, inputs["attention_mask"].bool()))
        self.model.train()
        return float(torch.cat(found).mean())
