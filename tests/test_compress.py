"""The stages that make a student small, in a recipe: order, keys, what is refused, and a whole chain to a verdict."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, branch_of, environment, planned, recipe_file
from faults import students
from faults.students import few
from safetensors.numpy import load_file, save_file

from pipeline import artifact, compress
from pipeline.artifact import digest_of
from pipeline.data import datasets as data
from pipeline.recipe import loading as recipes
from pipeline.text.bundled import everyday_sentences
from pipeline.verify import stage as verify

pytestmark = pytest.mark.toolchain

PRUNE = {"compute": 0.6, "uniform": True, "calibration_texts": 48, "max_length": 32}
CHAIN: dict[str, dict[str, Any]] = {
    "vocabulary": {"corpus": ["plain.txt"]},
    "prune": PRUNE,
    "factorise": {"embedding": 24, "calibration": ["plain.txt"], "calibration_texts": 48},
    "share": {"what": "feed_forward"},
}
ORDER = ["vocabulary", "prune", "factorise", "share", "student"]


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    """A recipe of a tiny random student with four stages."""
    return written(tmp_path, **CHAIN)


def written(place: Path, **sections: Any) -> Path:
    source = place / "source"
    source.mkdir(exist_ok=True)
    students.source(few("bert", "classification"), source)
    (place / "plain.txt").write_text("\n".join(everyday_sentences()))
    return recipe_file(
        place,
        task="classification",
        student={"source": "source", "random_weights": True},
        convert={"sequence_lengths": [16, 32]},
        targets={"litert": {"schemes": ["int8_dynamic"]}, "coreml": {"schemes": ["fp32"]}},
        **sections,
    )


def steps(outcome: Outcome) -> dict[str, bool]:
    return {step["name"]: step["made"] for step in outcome.document["steps"]}


@pytest.mark.full
def test_a_chain_ends_in_verified_files_and_is_kept(
    chain: Path, command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = command_here("verify", chain, "--json")
    assert outcome.document["verdicts"] == {"litert-int8_dynamic": "passed", "coreml-fp32": "passed"}, outcome.stdout
    assert list(steps(outcome))[:5] == ORDER
    folder = tmp_path / "build" / "tiny"
    metrics = {stage: artifact.load(folder / stage).manifest.metrics for stage in ("pruned", "shared", "student")}
    assert metrics["pruned"]["compute"] <= 0.6
    parameters = [metrics["pruned"]["parameters_before"], metrics["pruned"]["parameters"]]
    assert metrics["student"]["parameters"] < parameters[1] < parameters[0]
    assert metrics["shared"]["groups"] == [[0, 1]]
    said = artifact.load(folder / "student").manifest.params["origin"]
    assert said == "source, its vocabulary trimmed, pruned, factorised, its layers shared"
    again = steps(command_here("verify", chain, "--json"))
    assert not any(again.values())
    assert "torch" not in imported("verify", chain), "what is made need not be tried"
    # Another ratio makes what comes after it, and keeps what came before.
    changed = written(tmp_path, **CHAIN | {"prune": PRUNE | {"compute": 0.5}})
    assert "torch" in imported("plan", changed)
    planned = steps(command_here("compress", changed, "--json"))
    assert planned == {"vocabulary": False, "prune": True, "factorise": True, "share": True}


def imported(*arguments: str | Path) -> set[str]:
    """Return the modules that a real process of the command imports; the build folder lies beside the recipe."""
    command = [sys.executable, "-X", "importtime", "-m", "pipeline", *map(str, arguments)]
    place = Path(arguments[-1]).parent
    done = subprocess.run(command, cwd=place, env=environment(), capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


NAMED: dict[str, dict[str, Any]] = {
    "a corpus": {"vocabulary": {"corpus": ["own.txt"]}},
    "calibration texts": {"prune": PRUNE | {"calibration": ["own.txt"]}},
    "calibration texts of factors": {"factorise": {"embedding": 24, "calibration": ["own.txt"]}},
    "texts to learn on": {
        "start": {"teacher_layers": [0]},
        "distil": {"losses": {"cosine": 1.0}, "texts": ["own.txt"], "steps": 1, "max_length": 16},
    },
}


@pytest.mark.parametrize("case", NAMED)
def test_another_text_in_a_file_of_the_same_name_is_another_result(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, **NAMED[case])
    found = []
    for word in ("river", "house"):
        (tmp_path / "own.txt").write_text("\n".join(f"the old {word} number {one}" for one in range(20)))
        node = branch_of(path).end.node
        assert node is not None
        found.append(digest_of(dict(node.params)))
    assert found[0] != found[1]


def test_another_teacher_is_another_student(tmp_path: Path, command_here: Callable[..., Outcome]) -> None:
    distil = {"losses": {"soft_targets": 1.0}, "steps": 1, "max_length": 16, "texts": ["own.txt"]}
    path = written(tmp_path, start={"teacher_layers": [0]}, distil=distil | {"teacher": "teacher"})
    (tmp_path / "own.txt").write_text("the old river\nthe new house\n")
    shutil.copytree(tmp_path / "source", tmp_path / "teacher")
    assert steps(command_here("compress", path, "--json")) == {"start": True, "distil": True}
    assert would_make(path) == {"start": False, "distil": False}
    place = tmp_path / "teacher" / "model.safetensors"
    tensors = load_file(place)
    tensors["classifier.bias"] += 1
    save_file(tensors, place, metadata={"format": "pt"})
    assert would_make(path) == {"start": False, "distil": True}


def would_make(path: Path) -> dict[str, bool]:
    """Return which steps would be made."""
    return planned(path)


ROWS = "sentence\tlabel\n" + "".join(
    f"a {word} film number {one}\t{label}\n" for one in range(20) for label, word in enumerate(("bad", "good"))
)


@pytest.mark.toolchain
@pytest.mark.parametrize("name", [name for name in recipes.names() if name.endswith("-bundled")])
def test_a_twin_s_stages_go_together(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that is checked before hours of work, on data of a few rows; the runs themselves are in README."""
    (tmp_path / "sst2").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "sst2" / f"{split}.tsv").write_text(ROWS)
    monkeypatch.setenv(data.DATA_VARIABLE, str(tmp_path))
    found, file = recipes.read_recipe(name)
    branch_of(file, "student")
    assert found.train is not None
    assert [stage.name for stage in compress.stages(found)] == ["start", "distil"]


def test_the_heads_that_a_stage_leaves_behind_are_known_before(tmp_path: Path) -> None:
    """A recipe that goes on from another one's checkpoint is judged by it before that one is made."""
    for prune in (PRUNE, {"sparse": {"sparsity": 0.5}}):
        (tmp_path / "recipe.toml").unlink(missing_ok=True)
        path = written(tmp_path, prune=prune)
        text = path.read_text().replace('task = "classification"', 'task = "embedding"')
        path.write_text(text.replace("random_weights", 'pooling = "mean"\nrandom_weights'))
        config = branch_of(path, "student").end.source.config
        assert not str(config["architectures"][0]).endswith("ForSequenceClassification")


def test_a_plan_shows_every_stage(chain: Path, command_here: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = command_here("plan", chain, "--json")
    assert list(steps(outcome))[:5] == ORDER
    assert not (tmp_path / "build" / "tiny" / "pruned").exists()


def test_the_order_is_that_of_the_table_whatever_the_recipe_s(
    command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    turned = written(tmp_path, **dict(reversed(CHAIN.items())))
    assert list(steps(command_here("plan", turned, "--json")))[:5] == ORDER


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing asked": ({}, "makes nothing smaller; sections that do: [start], [vocabulary], [prune], [factorise]"),
    "no head left": ({"prune": {"compute": 0.01, "max_length": 32}}, "leaves no head for some layer"),
    "as many groups as layers": ({"share": {"groups": 2}}, "share.groups = 2 ties nothing in 2 layers"),
    "layers of many shapes to be tied": (
        {"prune": PRUNE | {"uniform": False}, "share": {}},
        "Give prune.uniform = true, which keeps the same number in each layer",
    ),
    "factors of many shapes to be tied": (
        {"factorise": {"feed_forward": {"parameters": 0.5}}, "share": {}},
        "Give factorise.feed_forward one rank, which all layers get",
    ),
    "layers tied twice": (
        {
            "start": {"kind": "albert"},
            "share": {},
            "distil": {"losses": {"cosine": 1.0}, "steps": 2, "dataset": "sst2"},
        },
        "start.kind = 'albert' ties all layers already; leave [share] out",
    ),
    "layers that are one": (
        {"start": {"kind": "shared"}, "prune": {"layers": 1}},
        "start.kind = 'shared' ties all layers, and prune.layers cannot take some of one",
    ),
    "a table in four factors": (
        {"start": {"kind": "albert"}, "factorise": {"embedding": 16}},
        "Give start.embedding_size instead of factorise.embedding",
    ),
    "a rank above the pieces that stay": (
        {"vocabulary": {"corpus": ["plain.txt"], "size": 300}, "factorise": {"embedding": 60}},
        "rank 60 saves nothing in 300 × 64",
    ),
    "columns that a start took": (
        {"start": {"kind": "width", "hidden_size": 32}, "prune": {"hidden_size": 48, "max_length": 32}},
        "prune.hidden_size = 48; the checkpoint has 32 columns",
    ),
    "a rank above the columns that stay": (
        {"prune": {"hidden_size": 32, "max_length": 32}, "factorise": {"embedding": 40}},
        "rank 40 saves nothing in 1000 × 32",
    ),
    "rank that saves nothing": ({"factorise": {"embedding": 64}}, "rank 64 saves nothing in 1000 × 64"),
    "no such texts": ({"prune": PRUNE | {"calibration": ["nowhere.txt"]}}, "nowhere.txt does not exist"),
    "no such data": (
        {"factorise": {"embedding": 24, "calibration": ["sst3"]}},
        "factorise.calibration: 'sst3' is no .txt file and no dataset; plain text: wikitext2, war-and-peace, ",
    ),
    "no such corpus": ({"vocabulary": {"corpus": ["nowhere.txt"]}}, "nowhere.txt does not exist"),
    "unknown key": ({"prune": {"ratio": 0.5, "max_length": 32}}, "'prune.ratio' does not exist"),
    "unknown loss": (
        {"distil": {"losses": {"magic": 1.0}, "steps": 2, "dataset": "sst2"}},
        "distil.losses = {'magic': 1.0}: 'magic' does not exist; there are: soft_targets, ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_carried_out_is_refused_first(
    case: str, command_here: Callable[..., Outcome], tmp_path: Path
) -> None:
    sections, said = REFUSED[case]
    outcome = command_here("compress", written(tmp_path, **sections))
    assert outcome.rc == 2, outcome.stdout
    assert said in " ".join(outcome.stderr.split())
    assert not (tmp_path / "build").exists() or not list((tmp_path / "build").rglob("*.safetensors"))


def test_every_section_that_compresses_has_its_stage() -> None:
    assert [stage.name for stage in compress.STAGES] == [
        "head",
        "start",
        "vocabulary",
        "prune",
        "factorise",
        "share",
        "adapter",
        "distil",
        "static",
        "rotate",
    ]
    assert len({stage.folder for stage in compress.STAGES}) == len(compress.STAGES)


@pytest.mark.full
def test_the_tiny_recipe_stays_below_eight_megabytes_in_every_format(
    pocketbert: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = pocketbert("verify", "minilm-tiny", "--json")
    found = {
        place.parent.name: verify.read_parity(place) for place in (tmp_path / "build" / "minilm-tiny").glob("*/parity")
    }
    assert set(found) == {"litert-int8_dynamic", "coreml-int8_weight_only", "executorch-int8_dynamic"}, outcome.stderr
    assert all(parity.verdict == "passed" and parity.file_bytes <= 8e6 for parity in found.values())
