"""Checkpoints of a training run: the complete state to resume it, in safetensors and JSON; nothing is pickled.

A checkpoint is the folder `<folder>/<key>/step-<updates>/`. It is written beside its place and renamed, so that a kill
at any moment leaves the previous one. The order of the data is a function of the number of updates and has no state.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from filelock import FileLock
from safetensors.torch import load_file, save_file

from pipeline.atomic import put, sync
from pipeline.train.sparsity import FixedZeros

_STATE = "state.json"


@dataclass(frozen=True)
class TrainingState:
    """The objects whose states a checkpoint holds."""

    model: Any
    """Unwrapped."""
    optimizer: torch.optim.Optimizer
    scheduler: Any
    accelerator: Accelerator
    zeros: FixedZeros | None = None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder: the worker of a killed run may still do its last update. The lock ends with the process."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        yield


def save(folder: Path, key: str, step: int, state: TrainingState, history: dict[str, Any]) -> None:
    """Write a checkpoint and remove earlier ones; every process has to call this.

    Args:
        folder: of the checkpoints of all keys.
        key: of the run.
        step: updates done.
        state: whose states are written.
        history: JSON values that `load` returns.
    """
    accelerator = state.accelerator
    place = folder / key / f"step-{step}"
    # All processes write into one folder, so its name is not random.
    aside = folder / key / f".step-{step}.new"
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    accelerator.wait_for_everyone()
    save_file(_random_state(), aside / f"random-{accelerator.process_index}.safetensors")
    if accelerator.is_main_process:
        document = {"key": key, "step": step, "processes": accelerator.num_processes, "notes": history}
        _write(aside, state, document)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        put(aside, place)
        for other in _steps(folder / key):
            if other != step:
                shutil.rmtree(folder / key / f"step-{other}", ignore_errors=True)


def _write(aside: Path, state: TrainingState, document: dict[str, Any]) -> None:
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in state.model.state_dict().items()}
    save_file(tensors, aside / "model.safetensors")
    optimizer = state.optimizer.state_dict()
    flat = {
        f"{number}.{name}": tensor.detach().cpu().clone()
        for number, values in optimizer["state"].items()
        for name, tensor in values.items()
    }
    save_file(flat, aside / "optimizer.safetensors")
    if state.zeros:
        save_file(state.zeros.state(), aside / "zeros.safetensors")
    scaler = state.accelerator.scaler
    document |= {
        "groups": optimizer["param_groups"],
        "scheduler": state.scheduler.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }
    (aside / _STATE).write_text(json.dumps(document), encoding="utf-8")
    sync(aside / _STATE)


def load(folder: Path, key: str, state: TrainingState) -> tuple[int, dict[str, Any]] | None:
    """Restore the latest checkpoint of a key.

    Returns:
        Updates done and the history, or None if there is no checkpoint, or one of another number of processes.
    """
    step = max(_steps(folder / key), default=None)
    if step is None:
        return None
    accelerator = state.accelerator
    place = folder / key / f"step-{step}"
    document = json.loads((place / _STATE).read_text(encoding="utf-8"))
    if document["key"] != key or document["processes"] != accelerator.num_processes:
        return None
    state.model.load_state_dict(load_file(place / "model.safetensors"))
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(place / "optimizer.safetensors").items():
        number, _, moment = name.partition(".")
        moments.setdefault(int(number), {})[moment] = tensor
    state.optimizer.load_state_dict({"state": moments, "param_groups": document["groups"]})
    state.scheduler.load_state_dict(document["scheduler"])
    if state.zeros:
        state.zeros.load(load_file(place / "zeros.safetensors"))
    if accelerator.scaler is not None and document["scaler"] is not None:
        accelerator.scaler.load_state_dict(document["scaler"])
    _set_random_state(load_file(place / f"random-{accelerator.process_index}.safetensors"))
    return step, document["notes"]


def _steps(folder: Path) -> list[int]:
    """Return the numbers of updates of all complete checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*") if (path / _STATE).is_file())


def _random_state() -> dict[str, torch.Tensor]:
    """Return the states of the random generators that dropout uses."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _set_random_state(states: dict[str, torch.Tensor]) -> None:
    setters: dict[str, Callable[[torch.Tensor], None]] = {
        "cpu": torch.set_rng_state,
        "cuda": torch.cuda.set_rng_state,
        "mps": torch.mps.set_rng_state,
    }
    for name, state in states.items():
        setters[name](state)
