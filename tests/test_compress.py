"""The stages that make a student small, in a recipe: order, keys, what is refused, and a whole chain to a verdict."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, recipe_file
from faults import students
from faults.students import Student

from pipeline import artifact, compress, verify

PRUNE = {"compute": 0.6, "even": True, "calibration_texts": 48, "max_length": 32}
CHAIN: dict[str, dict[str, Any]] = {
    "vocabulary": {"corpus": ["sentiment", "graded_pairs"]},
    "prune": PRUNE,
    "factorise": {"embedding": 24, "calibration": ["graded_pairs"], "calibration_texts": 48},
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
    students.source(Student("bert", "classification"), source)
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


def test_a_chain_ends_in_verified_files_and_is_kept(
    chain: Path, pocketbert: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = pocketbert("verify", chain, "--json")
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
    again = steps(pocketbert("verify", chain, "--json"))
    assert not any(again.values())
    # Another ratio makes what comes after it, and keeps what came before.
    changed = written(tmp_path, **CHAIN | {"prune": PRUNE | {"compute": 0.5}})
    planned = steps(pocketbert("compress", changed, "--json"))
    assert planned == {"vocabulary": False, "prune": True, "factorise": True, "share": True}


def test_a_plan_foretells_every_stage(chain: Path, pocketbert: Callable[..., Outcome], tmp_path: Path) -> None:
    outcome = pocketbert("plan", chain, "--json")
    assert list(steps(outcome))[:5] == ORDER
    assert not (tmp_path / "build" / "tiny" / "pruned").exists()


def test_the_order_is_that_of_the_table_whatever_the_recipe_s(
    pocketbert: Callable[..., Outcome], tmp_path: Path
) -> None:
    turned = written(tmp_path, **dict(reversed(CHAIN.items())))
    assert list(steps(pocketbert("plan", turned, "--json")))[:5] == ORDER


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing asked": ({}, "makes nothing smaller; sections that do: [start], [vocabulary], [prune], [factorise]"),
    "no head left": ({"prune": {"compute": 0.01, "max_length": 32}}, "leaves no head for some layer"),
    "as many groups as layers": ({"share": {"groups": 2}}, "share.groups = 2 ties nothing in 2 layers"),
    "layers of many shapes to be tied": (
        {"prune": PRUNE | {"even": False}, "share": {}},
        "Give prune.even = true, which keeps as many in each layer",
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
        "Give start.embedding_size in the place of factorise.embedding",
    ),
    "a rank above the pieces that stay": (
        {"vocabulary": {"corpus": ["sentiment"], "size": 300}, "factorise": {"embedding": 60}},
        "rank 60 saves nothing in 300 × 64",
    ),
    "columns that a start took": (
        {"start": {"kind": "width", "hidden_size": 32}, "prune": {"hidden": 48, "max_length": 32}},
        "prune.hidden = 48; the checkpoint has 32 columns",
    ),
    "a rank above the columns that stay": (
        {"prune": {"hidden": 32, "max_length": 32}, "factorise": {"embedding": 40}},
        "rank 40 saves nothing in 30522 × 32",
    ),
    "rank that saves nothing": ({"factorise": {"embedding": 64}}, "rank 64 saves nothing in 30522 × 64"),
    "no such texts": ({"prune": PRUNE | {"calibration": ["nowhere.txt"]}}, "nowhere.txt does not exist"),
    "no such data": (
        {"factorise": {"embedding": 24, "calibration": ["sst3"]}},
        "factorise.calibration: 'sst3' is no .txt file and no data set; plain text: wikitext2, war-and-peace; ",
    ),
    "no such corpus": ({"vocabulary": {"corpus": ["nowhere.txt"]}}, "nowhere.txt does not exist"),
    "unknown key": ({"prune": {"ratio": 0.5, "max_length": 32}}, "'prune.ratio' does not exist"),
    "unknown loss": (
        {"distil": {"losses": {"magic": 1.0}, "steps": 2, "dataset": "sst2"}},
        "distil.losses: 'magic' does not exist; there are: ",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_carried_out_is_refused_first(
    case: str, pocketbert: Callable[..., Outcome], tmp_path: Path
) -> None:
    sections, said = REFUSED[case]
    outcome = pocketbert("compress", written(tmp_path, **sections))
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
        "distil",
    ]
    assert len({stage.folder for stage in compress.STAGES}) == len(compress.STAGES)


@pytest.mark.full
def test_the_tiny_recipe_stays_below_eight_megabytes_in_every_format(
    pocketbert: Callable[..., Outcome], tmp_path: Path
) -> None:
    outcome = pocketbert("verify", "minilm-tiny", "--json")
    found = {place.parent.name: verify.read(place) for place in (tmp_path / "build" / "minilm-tiny").glob("*/parity")}
    assert set(found) == {"litert-int8_dynamic", "coreml-int8_weight_only", "executorch-int8_dynamic"}, outcome.stderr
    assert all(parity.verdict == "passed" and parity.file_bytes <= 8e6 for parity in found.values())
