"""Estimates: what a machine's own runs teach them, and how large a file is going to be."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from conftest import Silent, recipe_file
from test_graph import InThisProcess

from pipeline.convert.targets import choose_targets
from pipeline.execution import executor
from pipeline.execution.node import Estimate, Graph, Node, Scratch
from pipeline.execution.pace import Pace
from pipeline.execution.store import Store
from pipeline.planning.build import build
from pipeline.planning.request import Request
from pipeline.recipe import loading


def take(seconds: float, out: Path) -> Mapping[str, Any]:
    """Work for a while."""
    time.sleep(seconds)
    (out / "done").write_text("done")
    return {}


def take_more(seconds: float, scratch: Path, out: Path) -> Mapping[str, Any]:
    """Work for a while, with a folder that a stopped run leaves."""
    assert scratch.is_dir()
    return take(seconds, out)


def node(stage: str = "convert", kind: str = "litert-fp32", size: float = 4e6, *, estimate: float = 10.0) -> Node:
    arguments = (0.1,)
    said = Estimate(estimate, 1, kind=kind, size_bytes=int(size))
    return Node("own", f"{stage} {kind}", stage, stage, 1, {"kind": kind}, {}, {}, take, arguments, said)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "pace.json"


def learned(file: Path, *took: tuple[Node, float]) -> Pace:
    for one in took:
        Pace(file).record([one])
    return Pace(file)


# --- what is learned ---------------------------------------------------------------------------------------------


def test_without_a_record_an_estimate_stays(file: Path) -> None:
    assert Pace(file).seconds(node()) == 10.0


def test_one_run_teaches_the_next_estimate_of_its_kind(file: Path) -> None:
    assert learned(file, (node(), 42.0)).seconds(node(estimate=11.0)) == pytest.approx(46.2)


def test_a_run_on_a_busy_machine_is_forgiven(file: Path) -> None:
    pace = learned(file, *((node(), seconds) for seconds in (20.0, 22.0, 300.0, 19.0, 21.0)))
    assert pace.seconds(node()) == 21.0
    # The newest five count.
    pace = learned(file, *((node(), 80.0) for _ in range(3)))
    assert pace.seconds(node()) == 80.0


def test_the_nearest_size_teaches_where_the_own_is_new_and_then_the_stage(file: Path) -> None:
    pace = learned(file, (node(size=4e6), 40.0), (node(size=64e6), 20.0), (node("verify"), 5.0))
    assert pace.seconds(node(size=400e6)) == 20.0
    assert pace.seconds(node(size=0)) == 40.0
    assert pace.seconds(node(kind="coreml-fp16")) == 30.0
    assert pace.seconds(node("report", "")) == 10.0


def test_what_cannot_be_work_of_its_kind_is_clipped(file: Path) -> None:
    assert learned(file, (node(), 1e6)).seconds(node()) == 500.0
    assert learned(file, *[(node("student"), 0.0)] * 2).seconds(node("student")) == 0.2


def test_a_damaged_record_counts_for_nothing_and_is_mended(file: Path) -> None:
    file.parent.mkdir()
    kind = "convert/litert-fp32/1"
    numbers = {kind: ["fast", -1, 1e9], "x": [2.0], kind[:-1]: [2], kind[:-1] + "9" * 5000: [2]}
    for content in ("", "[", "[1]", "{}", '{"vm": 3}', json.dumps({"vm": numbers})):
        file.write_text(content.replace('"vm"', json.dumps(Pace.machine())))
        assert Pace(file).seconds(node()) == 10.0
    assert learned(file, (node(), 20.0)).seconds(node()) == 20.0


def test_a_pipe_is_no_record(file: Path) -> None:
    file.parent.mkdir()
    os.mkfifo(file)
    assert Pace(file).seconds(node()) == 10.0


def test_the_record_of_another_machine_stays_and_teaches_nothing(file: Path) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"elsewhere": {"convert/litert-fp32/1": [3.0]}}))
    assert learned(file, (node(), 20.0)).seconds(node()) == 20.0
    assert json.loads(file.read_text())["elsewhere"] == {"convert/litert-fp32/1": [3.0]}


def test_where_no_record_can_be_written_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert learned(tmp_path / "file" / "pace.json", (node(), 20.0)).seconds(node()) == 10.0


# --- what a run teaches ------------------------------------------------------------------------------------------


def test_after_a_run_a_plan_is_right_within_a_factor_of_two(file: Path, tmp_path: Path) -> None:
    graph = Graph("own")
    graph.include(node(), node("verify", estimate=0.01))
    made = executor.carry_out(graph, Store(tmp_path / "one"), InThisProcess(), Silent(), Pace(file))
    took = {step.name: step.seconds for step in made.steps}
    expected = {step.name: step.seconds for step in executor.plan(graph, Store(tmp_path / "two"), Pace(file)).steps}
    assert set(took) == set(expected) == {"convert litert-fp32", "verify litert-fp32"}
    for name, seconds in took.items():
        assert seconds / 2 < expected[name] < 2 * seconds or expected[name] == 50 * 0.01
    before = {step.name: step.seconds for step in executor.plan(graph, Store(tmp_path / "two")).steps}
    assert before["convert litert-fp32"] == 10.0


def test_a_node_that_goes_on_where_a_stopped_run_was_teaches_nothing(file: Path, tmp_path: Path) -> None:
    said = Estimate(10.0, 1, kind="", size_bytes=1)
    whole = Node("own", "train", "train", "train", 1, {}, {}, {}, take_more, (0.0, Scratch()), said)
    graph, store = Graph("own"), Store(tmp_path / "build")
    graph.include(whole)
    store.scratch(whole.spec({}).key).mkdir(parents=True)
    executor.carry_out(graph, store, InThisProcess(), Silent(), Pace(file))
    assert not file.exists()


# --- sizes -------------------------------------------------------------------------------------------------------


def test_a_file_of_four_bits_is_estimated_with_its_table_of_eight(tmp_path: Path) -> None:
    """MiniLM's: 18.5 MB on the disk, of which the table of words has 11.7."""
    targets = {"litert": {"schemes": ["fp32", "int8_dynamic", "int4_dynamic"]}}
    parsed, path = loading.read_recipe(str(recipe_file(tmp_path, targets=targets, quantize={})))
    graph = build(Request(parsed, path, "convert", choose_targets(parsed, [])))
    sizes = {
        one.name.partition("-")[2]: one.estimate.disk_bytes for one in graph.nodes.values() if one.stage == "convert"
    }
    assert sizes["int4_dynamic"] == pytest.approx(18.5e6, rel=0.05)
    assert sizes["int8_dynamic"] == pytest.approx(23e6, rel=0.05)
    assert sizes["fp32"] == pytest.approx(91e6, rel=0.05)
    seconds = {one.name: one.estimate.seconds for one in graph.nodes.values() if one.stage == "quantize"}
    assert 8 < seconds["quantize int4_dynamic"] / seconds["quantize int8_dynamic"] < 12
