"""Checkpoints: everything that decides how a run goes on, in safetensors and JSON; nothing is pickled.

One lies in `<folder>/<key>/step-<updates>/`. It is written aside and renamed, so that a kill at any moment leaves the
one before. The data's order is a function of the number of updates, so it needs no state of its own.
"""

import json
import os
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

from pipeline.train.sparsity import FixedZeros

_STATE = "state.json"


@dataclass(frozen=True)
class Parts:
    """What has a state."""

    model: Any
    """Not wrapped."""
    optimizer: torch.optim.Optimizer
    scheduler: Any
    accelerator: Accelerator
    zeros: FixedZeros | None = None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder: the worker of a killed run may still be at its last update. The lock ends with its process."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        yield


def save(folder: Path, key: str, step: int, parts: Parts, notes: dict[str, Any]) -> None:
    """Write a checkpoint after so many updates and remove those before it; every process has to call this.

    Args:
        folder: of all checkpoints.
        key: of the run.
        step: updates done.
        parts: whose states are written.
        notes: JSON that `load` gives back.
    """
    accelerator = parts.accelerator
    place = folder / key / f"step-{step}"
    # All processes write into one directory, so its name is not random.
    aside = folder / key / f".step-{step}.new"
    if accelerator.is_main_process:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
    accelerator.wait_for_everyone()
    save_file(_random_state(), aside / f"random-{accelerator.process_index}.safetensors")
    if accelerator.is_main_process:
        _write(aside, parts, {"key": key, "step": step, "processes": accelerator.num_processes, "notes": notes})
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
        for other in _steps(folder / key):
            if other != step:
                shutil.rmtree(folder / key / f"step-{other}", ignore_errors=True)


def _write(aside: Path, parts: Parts, state: dict[str, Any]) -> None:
    tensors = {name: tensor.detach().cpu().clone() for name, tensor in parts.model.state_dict().items()}
    save_file(tensors, aside / "model.safetensors")
    optimizer = parts.optimizer.state_dict()
    flat = {
        f"{number}.{name}": tensor.detach().cpu().clone()
        for number, values in optimizer["state"].items()
        for name, tensor in values.items()
    }
    save_file(flat, aside / "optimizer.safetensors")
    if parts.zeros:
        save_file(parts.zeros.state(), aside / "zeros.safetensors")
    scaler = parts.accelerator.scaler
    state |= {
        "groups": optimizer["param_groups"],
        "scheduler": parts.scheduler.state_dict(),
        "scaler": scaler.state_dict() if scaler is not None else None,
    }
    with (aside / _STATE).open("w", encoding="utf-8") as handle:
        json.dump(state, handle)
        handle.flush()
        os.fsync(handle.fileno())


def load(folder: Path, key: str, parts: Parts) -> tuple[int, dict[str, Any]] | None:
    """Bring the latest checkpoint of a key back.

    Returns:
        Updates done and the notes, or None where there is none, or one of another number of processes.
    """
    step = max(_steps(folder / key), default=None)
    if step is None:
        return None
    accelerator = parts.accelerator
    place = folder / key / f"step-{step}"
    state = json.loads((place / _STATE).read_text(encoding="utf-8"))
    if state["key"] != key or state["processes"] != accelerator.num_processes:
        return None
    parts.model.load_state_dict(load_file(place / "model.safetensors"))
    moments: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in load_file(place / "optimizer.safetensors").items():
        number, _, what = name.partition(".")
        moments.setdefault(int(number), {})[what] = tensor
    parts.optimizer.load_state_dict({"state": moments, "param_groups": state["groups"]})
    parts.scheduler.load_state_dict(state["scheduler"])
    if parts.zeros:
        parts.zeros.load(load_file(place / "zeros.safetensors"))
    if accelerator.scaler is not None and state["scaler"] is not None:
        accelerator.scaler.load_state_dict(state["scaler"])
    _set_random_state(load_file(place / f"random-{accelerator.process_index}.safetensors"))
    return step, state["notes"]


def _steps(folder: Path) -> list[int]:
    """Return the updates of all whole checkpoints."""
    return sorted(int(path.name.removeprefix("step-")) for path in folder.glob("step-*") if (path / _STATE).is_file())


def _random_state() -> dict[str, torch.Tensor]:
    """Return the states of the generators that dropout draws from."""
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
