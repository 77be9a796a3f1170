"""Ratios, ranks and corpora that leave nothing, through the real command: one line and exit code 2, before any work."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Outcome, recipe_file
from faults import students
from faults.students import few

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no head left": ({"prune": {"compute": 0.01}}, "prune.compute = 0.01 leaves no head for some layer"),
    "no head of two layers": (
        {"prune": {"attention_heads": 0.2}},
        "prune.attention_heads = 0.2 keeps 1 of 8; a head of each layer are 2",
    ),
    "no neurons left": (
        {"prune": {"intermediate_size": 0.01}},
        "prune.intermediate_size = 0.01 keeps 2 of 256; 8 intermediate neurons of each layer are 16",
    ),
    "a negative ratio": ({"prune": {"compute": -0.5}}, "prune.compute = -0.5: input should be greater than 0"),
    "a ratio of nothing": (
        {"prune": {"attention_heads": 0.0}},
        "prune.attention_heads = 0.0: input should be greater than 0",
    ),
    "a ratio of everything": ({"prune": {"compute": 1.0}}, "prune.compute = 1.0: input should be less than 1"),
    "no layer left": ({"prune": {"layers": 0}}, "prune.layers = 0: leaves no layer"),
    "an empty list of layers": ({"prune": {"layers": []}}, "prune.layers = []: leaves no layer"),
    "a layer below the first": ({"prune": {"layers": [-1]}}, "prune.layers names layer -1; the checkpoint has 0 to 1"),
    "every layer": ({"prune": {"layers": 2}}, "prune.layers = 2, and the checkpoint has 2; keep fewer"),
    "a negative hidden size": (
        {"prune": {"hidden_size": -8}},
        "prune.hidden_size = -8: input should be greater than or equal to 1",
    ),
    "a rank above the width": ({"factorise": {"embedding": 65}}, "rank 65 saves nothing in 1000 × 64"),
    "a rank above a linear's": ({"factorise": {"feed_forward": 200}}, "rank 200 saves nothing in 128 × 64"),
    "no rank": ({"factorise": {"embedding": 0}}, "factorise.embedding.rank = 0: input should be greater than"),
    "an empty corpus": ({"vocabulary": {"corpus": ["empty.txt"]}}, "empty.txt holds no text"),
    "no corpus": ({"vocabulary": {"corpus": []}}, "vocabulary.corpus = []: value should have at least 1 item"),
    "a table as prose": (
        {
            "distil": {"texts": ["rows.csv"], "losses": {"hidden": 1.0}, "max_length": 32},
            "prune": {"attention_heads": 0.5},
        },
        "rows.csv is a table, not plain text; save its texts as .txt",
    ),
    "no pieces": ({"vocabulary": {"corpus": ["empty.txt"], "size": 0}}, "vocabulary.size = 0: input should be greater"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny student: two layers, four heads, 64 columns, 128 feed-forward rows, 64 positions."""
    return students.source(few("bert", "embedding"), tmp_path_factory.mktemp("source"))


@pytest.mark.parametrize("case", REFUSED)
def test_what_leaves_nothing_is_refused_first(
    case: str, source: Path, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    sections, said = REFUSED[case]
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "rows.csv").write_text("text\nsome words\n")
    if "prune" in sections:
        sections = sections | {"prune": {"max_length": 32} | sections["prune"]}
    outcome = command_here("compress", recipe_file(tmp_path, student={"source": str(source)}, **sections))
    assert outcome.rc == 2
    assert outcome.stderr.startswith("error:")
    assert len(outcome.stderr.splitlines()) == 1
    assert said in outcome.stderr
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device for it here")
def test_half_precision_on_a_cpu_is_refused_before_what_comes_before_it(
    source: Path, tmp_path: Path, command_here: Callable[..., Outcome]
) -> None:
    (tmp_path / "lines.txt").write_text("some words\nand others\n")
    distil = {"texts": ["lines.txt"], "losses": {"hidden": 1.0}, "max_length": 32, "precision": "fp16"}
    sections = {"prune": {"attention_heads": 0.5, "max_length": 32}, "distil": distil}
    outcome = command_here("compress", recipe_file(tmp_path, student={"source": str(source)}, **sections))
    assert outcome.rc == 2
    assert outcome.stderr.startswith("error: distil.precision = 'fp16' needs a GPU")
    assert not list(tmp_path.rglob("*.safetensors"))
