"""Recipes drawn at random: what the plan accepts is carried out, and ends in the checkpoint that its trial left."""

import random
from pathlib import Path
from typing import Any

import pytest
from conftest import branch_of, check_trial, recipe_file
from faults import students
from faults.students import few

from pipeline.checkpoint.source import Source, inspect_folder
from pipeline.errors import PipelineError, RecipeError
from pipeline.execution.node import Node, resolve
from pipeline.planning.branches import Branch
from pipeline.student import stage as student_stage
from pipeline.train.checks import class_of

pytestmark = pytest.mark.toolchain

ACCEPTED = 8
"""Recipes that are carried out, of each kind of student."""
ONLY_ITS_NUMBERS_TELL = "saves nothing"
"""Said by [factorise] of a rank that what earlier sections left has no use for: rows that [prune] chose, pieces that a
corpus needs."""
TEXTS = [
    f"Film number {number} was {word}, said {who}."
    for word, who in (("good", "he"), ("bad", "she"))
    for number in range(30)
]
SHORT = {"steps": 2, "batch_size": 8, "max_length": 16}
CALIBRATED = {"calibration": ["lines.txt"], "calibration_texts": 8}
DRAWN: dict[str, tuple[float, list[dict[str, Any]]]] = {
    "head": (0.2, [SHORT | {"texts": ["lines.txt"]}]),
    "start": (
        0.4,
        [
            {"kind": "layers"},
            {"kind": "layers", "teacher_layers": [1]},
            {"kind": "width", "hidden_size": 32},
            {"kind": "random"},
            {"kind": "distilbert"},
            {"kind": "albert"},
            {"kind": "albert", "embedding_size": 16},
            {"kind": "shared"},
        ],
    ),
    "vocabulary": (0.3, [{"corpus": ["lines.txt"]} | more for more in ({}, {"size": 200}, {"keep": 0.5})]),
    "prune": (
        0.5,
        [
            CALIBRATED | {"max_length": 16} | asked
            for asked in (
                {"attention_heads": 0.5},
                {"intermediate_size": 0.5},
                {"compute": 0.5},
                {"compute": 0.6, "uniform": True},
                {"attention_heads": 0.5, "intermediate_size": 0.5, "uniform": True},
                {"layers": 1},
                {"hidden_size": 32},
                {"hidden_size": 48, "layers": 1},
            )
        ]
        + [{"sparse": {"sparsity": 0.5}}],
    ),
    "factorise": (
        0.4,
        [
            {"embedding": 16, "weighted": False},
            {"embedding": 40, "weighted": False},
            {"feed_forward": 8} | CALIBRATED,
            {"feed_forward": 24} | CALIBRATED,
            {"embedding": 16, "feed_forward": {"parameters": 0.5}} | CALIBRATED,
        ],
    ),
    "share": (0.4, [{}, {"what": "attention"}, {"what": "feed_forward"}, {"start": "first"}]),
    "distil": (
        0.6,
        [
            SHORT | {"texts": ["lines.txt"], "losses": dict.fromkeys(losses, 1.0)} | more
            for losses, more in (
                (["hidden"], {}),
                (["cosine"], {}),
                (["hidden", "attention"], {}),
                (["relations"], {}),
                (["embeddings"], {}),
                (["sentence_cosine", "similarity"], {}),
                (["soft_targets"], {}),
                (["hidden"], {"teacher_layers": [1]}),
                (["masked_lm"], {"head": "masked_lm"}),
            )
        ],
    ),
}
"""How often a section is there, and what of it."""


def sizes_are_measured(sections: dict[str, Any]) -> bool:
    """Return whether weights decide how many heads, neurons or ranks each layer keeps."""
    prune, factorise = sections.get("prune", {}), sections.get("factorise", {})
    searched = {"compute", "attention_heads", "intermediate_size"} & prune.keys()
    return bool(searched) or isinstance(factorise.get("feed_forward"), dict)


def drawn(dice: random.Random) -> dict[str, Any]:
    """Draw the sections of a recipe."""
    return {name: dice.choice(all_of) for name, (often, all_of) in DRAWN.items() if dice.random() < often}


def accepted(folder: Path, sections: dict[str, Any], task: str) -> Branch | None:
    """Return what the plan says of a recipe, None where it refuses it."""
    try:
        return branch_of(
            recipe_file(folder, task=task, student={"source": "source", "random_weights": True}, **sections), "student"
        )
    except PipelineError:
        return None


def carried_out(expected: Branch, out: Path) -> Source:
    """Take every node in this process, without what keeps artifacts."""
    nodes, node = [], expected.end.node
    while node:
        nodes.append(node)
        before = node.inputs["source"]
        node = before if isinstance(before, Node) else None
    assert expected.named
    made: dict[str, Path] = {expected.named.source.digest: expected.named.source.folder}
    for node in reversed(nodes):
        inputs = {name: made[one.identity] if isinstance(one, Node) else one.path for name, one in node.inputs.items()}
        place = made[node.identity] = out / node.place
        place.mkdir(parents=True)
        node.function(
            *resolve(node.arguments, inputs, out / f"{node.place}-scratch", out / "cache", out / "log"), place
        )
    folder = made[nodes[0].identity] if nodes else expected.named.source.folder
    (out / "student").mkdir(parents=True)
    student_stage.make(folder, expected.recipe.task, False, out / "student")
    return inspect_folder(folder, origin=folder.name, licence=None)


@pytest.mark.parametrize("task", ["embedding", "classification"])
@pytest.mark.parametrize(
    "architecture",
    ["bert", *(pytest.param(name, marks=pytest.mark.full) for name in ("roberta", "distilbert", "electra", "albert"))],
)
def test_what_a_plan_accepts_is_carried_out(architecture: str, task: str, tmp_path: Path) -> None:
    dice = random.Random(f"{architecture} {task}")
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "source").mkdir()
    students.source(few(architecture, task), tmp_path / "source")
    done = 0
    while done < ACCEPTED:
        sections = drawn(dice)
        found = accepted(tmp_path, sections, task) if sections else None
        if found is None:
            continue
        done += 1
        try:
            made = carried_out(found, tmp_path / f"made-{done}")
        except RecipeError as error:
            if ONLY_ITS_NUMBERS_TELL not in str(error):
                raise AssertionError(sections) from error
            continue
        if "corpus" in sections.get("vocabulary", {}):
            # The trial's tokens have other ids, and without a size other numbers.
            assert class_of(made) == class_of(found.end.source), sections
            continue
        check_trial(found.end.source, made.folder, sizes_are_measured=sizes_are_measured(sections))
