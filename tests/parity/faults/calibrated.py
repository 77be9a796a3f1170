"""A calibrated checkpoint at hand of faults that are planted into it."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.checkpoint import integers as stored_integers
from pipeline.checkpoint import ranges
from pipeline.checkpoint.integers import Integers
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.quantize import checkpoint as quantised


@dataclass(frozen=True)
class Checkpoint:
    """A copy of a quantised checkpoint that a fault edits, with what it has at hand."""

    folder: Path
    """The copy."""
    student: Path
    """The clean student."""
    task: str
    scheme: str
    stranger: Path
    """The same of another student."""
    other: Path
    """The same of this student, trained where this one was not, and untrained where it was."""

    def take(self, folder: Path) -> None:
        """Put another checkpoint's files in the place of this one's."""
        for file in folder.iterdir():
            if file.name != "manifest.json":
                shutil.copyfile(file, self.folder / file.name)

    def tensors(self) -> dict[str, Any]:
        """Return the weights, as torch holds them."""
        from safetensors.torch import load_file

        return load_file(self.folder / WEIGHTS)

    def put_tensors(self, tensors: dict[str, Any]) -> None:
        """Write weights."""
        from safetensors.torch import save_file

        save_file({name: one.contiguous() for name, one in tensors.items()}, self.folder / WEIGHTS, {"format": "pt"})

    def of_student(self, name: str) -> Any:
        """Return a tensor of the student."""
        from safetensors.torch import load_file

        return load_file(self.student / WEIGHTS)[name]

    def integers(self) -> dict[str, Integers]:
        """Return the weights that are integers."""
        return stored_integers.read(self.folder)

    def put(self, name: str, one: Integers | None) -> None:
        """Give a weight other integers, or the student's floats, wherever the checkpoint speaks of it."""
        import torch

        held, tensors = self.integers(), self.tensors()
        record = json.loads((self.folder / stored_integers.RECORD).read_text(encoding="utf-8"))
        if one is None:
            del held[name]
            tensors[name] = self.of_student(name)
            record["weights"] = [row for row in record["weights"] if row["name"] != name]
        else:
            held[name] = one
            tensors[name] = torch.from_numpy(one.dense())
            for row in record["weights"]:
                row.update({"bits": one.bits, "block": one.block} if row["name"] == name else {})
        stored_integers.write(held, self.folder)
        self.put_tensors(tensors)
        (self.folder / stored_integers.RECORD).write_text(json.dumps(record), encoding="utf-8")

    def put_linears(self, edit: Callable[[list[ranges.Linear]], list[ranges.Linear]]) -> None:
        """Edit what was found for each linear."""
        record = ranges.read(self.folder)
        edited = record.model_copy(update={"linears": tuple(edit(list(record.linears)))})
        (self.folder / ranges.FILE).write_text(edited.model_dump_json(), encoding="utf-8")

    def edit_gains(self, edit: Callable[[dict[str, Any]], None]) -> None:
        """Edit the gains, as torch holds them."""
        from pipeline.checkpoint import smoothquant

        found = smoothquant.read(self.folder)
        assert found
        edit(found[0])
        smoothquant.write(*found, self.folder)

    def restructure(self) -> None:
        """Let `structure.json` say what the model is now."""
        from pipeline import tasks
        from pipeline.checkpoint.loading import load_checkpoint

        quantised.write_structure(load_checkpoint(self.folder, tasks.get(self.task)), self.folder)
