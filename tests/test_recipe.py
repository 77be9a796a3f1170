"""Recipes mean what they say, and the tables behind them have no gaps."""

import re
from pathlib import Path
from typing import get_args

import pytest
from conftest import LABELS, PAIRS, recipe_file, recipe_values

from pipeline import architectures, formats, tasks
from pipeline.architectures import ARCHITECTURES
from pipeline.convert.stage import Target, targets
from pipeline.data import datasets as data
from pipeline.errors import RecipeError
from pipeline.kinds import KINDS, OutputKind
from pipeline.metrics import scoring
from pipeline.recipe import loading, reference
from pipeline.recipe import loading as recipe
from pipeline.recipe.schema import RENAMED, Recipe
from pipeline.runtimes import version_numbers
from pipeline.schemes import BACKENDS, SCHEMES, UNSUPPORTED, Gates, supported
from pipeline.tasks import TASKS


def checked(tmp_path, **overrides) -> Recipe:
    return loading.checked(recipe_values(**overrides), tmp_path / "recipe.toml")


# --- recipes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipe.names())
def test_a_packaged_recipe_loads_and_has_its_file_s_name(name):
    found, path = recipe.read_recipe(name)
    assert found.name == name == path.stem
    assert targets(found)


def test_minilm_is_packaged_and_asks_every_backend():
    found, _ = recipe.read_recipe("minilm")
    assert set(found.targets) == set(formats.NAMES)


def test_defaults(tmp_path):
    found = checked(tmp_path, convert=None, targets={name: {"schemes": ["fp32"]} for name in formats.NAMES})
    assert found.convert.sequence_lengths == (16, 32, 64, 128)
    assert {name: found.minimum_ios(name) for name in found.targets} == {
        "litert": None,
        "coreml": 18,
        "executorch": None,
    }
    assert not found.student.random_weights
    assert found.verify.datasets is None
    assert found.verify.gates == {}
    assert found.benchmark.rounds >= 1


def test_a_path_and_a_name_are_told_apart(tmp_path):
    path = recipe_file(tmp_path)
    assert recipe.read_recipe(str(path))[1] == path
    assert recipe.find("minilm") == recipe.RECIPES / "minilm.toml"


def test_targets_come_in_the_recipe_s_order(tmp_path):
    found = checked(tmp_path, targets={"executorch": {"schemes": ["fp32"]}, "litert": {"schemes": ["fp16", "fp32"]}})
    assert targets(found) == [Target("executorch", "fp32"), Target("litert", "fp16"), Target("litert", "fp32")]
    assert str(Target("litert", "fp16")) == "litert-fp16"


def test_a_target_s_lengths_replace_the_recipe_s(tmp_path):
    own = {"litert": {"schemes": ["fp32"], "sequence_lengths": [24]}, "executorch": {"schemes": ["fp32"]}}
    found = checked(tmp_path, targets=own)
    assert found.lengths("litert") == (24,)
    assert found.lengths("executorch") == (8, 32)


def test_a_bound_of_the_recipe_replaces_that_bound_alone(tmp_path):
    found = checked(tmp_path, verify={"gates": {"fp32": {"min_sqnr_db": 12.5}}})
    default = SCHEMES["fp32"].gates["embedding"]
    assert found.gates("fp32") == default.model_copy(update={"min_sqnr_db": 12.5})
    assert found.gates("int8_dynamic") == SCHEMES["int8_dynamic"].gates["embedding"]


def test_gates_follow_the_task_s_kind_of_output(tmp_path):
    assert checked(tmp_path).gates("fp32").min_worst_cosine is not None
    assert checked(tmp_path, task="classification").gates("fp32").min_agreement is not None


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("bound", Gates.model_fields)
def test_a_bound_is_taken_if_and_only_if_the_task_has_its_measure(bound, task, tmp_path):
    # A recipe's bound that no measure is compared with would be a gate that cannot fire.
    cosines, winners = {"min_mean_cosine", "min_worst_cosine", "max_all_pad_error"}, {"min_agreement", "max_kl"}
    kind = TASKS[task].output_kind
    without = {"embedding": winners, "value": cosines | winners, "values": cosines | winners}
    senseless = bound in without.get(kind, cosines)
    gates = {"gates": {"fp32": {bound: 0.5}}}
    if senseless:
        with pytest.raises(RecipeError, match=rf"verify\.gates\.fp32\.{bound}"):
            checked(tmp_path, task=task, verify=gates)
    else:
        assert getattr(checked(tmp_path, task=task, verify=gates).gates("fp32"), bound) == 0.5


def test_a_recipe_cannot_be_changed(tmp_path):
    with pytest.raises(ValueError, match="frozen"):
        checked(tmp_path).name = "other"


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_refused_with_the_new_one(old, tmp_path):
    key, _, value = old.partition(" = ")
    section, name = key.split(".")
    with pytest.raises(RecipeError, match=re.escape(f"recipe.toml: {old} was renamed {RENAMED[old]}.")):
        checked(tmp_path, **{section: {name: value.strip("'") if value else [1]}})
    new = RENAMED[old].split(",")[0]
    keys = {f"{place}.{one.name}": one.accepts for place, listed in reference.sections().items() for one in listed.keys}
    assert (new.strip("'") in keys[key]) if value else (new in keys and key not in keys)


# --- schemes and backends ----------------------------------------------------------------------------------------


def test_every_folder_of_backends_is_a_backend_and_every_scheme_s_row_answers_for_each():
    folders = {path.parent.name for path in Path(formats.__file__).parent.glob("*/__init__.py")}
    assert folders == set(BACKENDS) == set(formats.NAMES)
    for scheme in SCHEMES.values():
        assert set(scheme.support) == set(BACKENDS), scheme.name
    for name, row in UNSUPPORTED.items():
        assert set(row.support) == set(BACKENDS), name
        assert all(row.refusal(backend) for backend in BACKENDS), f"{name} belongs to SCHEMES"


@pytest.mark.parametrize("scheme", UNSUPPORTED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scheme_that_no_backend_carries_out_is_refused_with_the_measurement(backend, scheme, tmp_path):
    reason = UNSUPPORTED[scheme].refusal(backend)
    with pytest.raises(
        RecipeError, match=re.escape(f"{backend} does not support {scheme}: {reason} It supports: fp32")
    ):
        checked(tmp_path, targets={backend: {"schemes": [scheme]}})
    with pytest.raises(RecipeError, match=f"gates.{scheme}: no format supports {scheme}"):
        checked(tmp_path, verify={"gates": {scheme: {}}})


@pytest.mark.parametrize("backend", formats.NAMES)
def test_a_backend_converts_exactly_the_schemes_whose_rows_say_that_it_supports_them(backend):
    assert set(supported(backend)) == formats.get(backend).CONVERTS


@pytest.mark.parametrize("minimum_ios", [15, 16, 17, 18])
@pytest.mark.parametrize("scheme", [*SCHEMES, *UNSUPPORTED])
@pytest.mark.parametrize("backend", formats.NAMES)
def test_a_refusal_is_one_whole_sentence(backend, scheme, minimum_ios):
    reason = (UNSUPPORTED.get(scheme) or SCHEMES[scheme]).refusal(backend, minimum_ios=minimum_ios)
    if reason is not None:
        assert len(reason) > 30
        assert reason.endswith(".")
        assert "\n" not in reason


def test_no_two_schemes_look_alike_or_are_shipped_alike():
    marks = [scheme.mark for scheme in SCHEMES.values()]
    assert all(len({getattr(mark, part) for mark in marks}) == len(marks) for part in ("marker", "line", "hatch"))
    assert len({scheme.shipping_rank for scheme in SCHEMES.values()}) == len(SCHEMES)
    assert sorted(SCHEMES, key=lambda name: SCHEMES[name].shipping_rank) == [
        "palettize_6bit",
        "int8_dynamic",
        "int8_static",
        "int8_static_per_tensor",
        "int8_weight_only",
        "fp16",
        "fp32",
        "int4_dynamic",
        "palettize_4bit",
        "int4_weight_only",
    ]


def test_a_scheme_s_minimum_runtime_is_its_own_or_the_backend_s():
    litert = formats.get("litert")
    known = {name: formats.minimum_runtime("litert", name) for name in litert.CONVERTS}
    assert known["int8_dynamic"] == known["fp32"] == litert.MINIMUM_RUNTIME
    assert version_numbers(known["int4_dynamic"]) > version_numbers(litert.MINIMUM_RUNTIME)
    assert formats.minimum_runtime("coreml", "int4_weight_only") == formats.get("coreml").MINIMUM_RUNTIME


@pytest.mark.parametrize("backend", formats.NAMES)
def test_every_backend_makes_its_base_scheme_and_one_more(backend):
    module = formats.get(backend)
    able = supported(backend)
    assert len(able) >= 2
    assert module.BASE_SCHEME is None or module.BASE_SCHEME in able


@pytest.mark.parametrize("kind", get_args(OutputKind))
def test_every_scheme_has_gates_that_hold_it_to_something(kind):
    for scheme in SCHEMES.values():
        bounds = scheme.gates[kind].model_dump(exclude_none=True)
        assert {"min_sqnr_db", "max_task_drop", "max_bytes_per_parameter"} <= set(bounds)
        # Beside int4 linears, tables are int8, which may be half of a model.
        table_bytes = 1.0 if scheme.weights == "int4" else scheme.weight_bytes
        assert scheme.weight_bytes < bounds["max_bytes_per_parameter"] < 1.25 * table_bytes
        assert 0 < bounds["max_task_drop"] <= 0.02


def test_a_coarser_scheme_is_never_held_to_more():
    order = ["fp32", "fp16", "int8_weight_only", "palettize_6bit", "int8_dynamic", "int8_static"]
    order += ["int8_static_per_tensor", "palettize_4bit", "int4_dynamic", "int4_weight_only"]
    floors = [SCHEMES[name].gates["embedding"].min_worst_cosine or 0.0 for name in order]
    assert floors == sorted(floors, reverse=True)
    assert set(order) == set(SCHEMES)


# --- tasks and architectures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_task_s_data_sets_and_metric_exist(task):
    # What several labels or numbers mean, each checkpoint says anew: only files of one's own have them.
    assert bool(task.datasets) != KINDS[task.output_kind].several_targets
    assert KINDS[task.output_kind].metric in scoring.METRICS
    assert set(task.datasets) <= set(data.DATASETS)
    assert {data.DATASETS[name].metric for name in task.datasets} <= set(scoring.METRICS)
    assert tasks.get(task.name) is task


def test_every_data_set_serves_a_task():
    assert {name for task in TASKS.values() for name in task.datasets} == set(data.DATASETS)


@pytest.mark.parametrize("dataset", [row for row in data.DATASETS.values() if row.bundled], ids=lambda row: row.name)
def test_a_bundled_data_set_loads_and_has_a_digest(dataset):
    assert len(dataset.load()) >= 30
    assert dataset.absent() is None
    assert len(dataset.digest()) == 64


@pytest.mark.parametrize(("architecture", "task"), PAIRS)
def test_a_tiny_student_of_every_architecture_loads_for_every_task(architecture, task, tiny_student):
    from pipeline.checkpoint.loading import export_graph, load_checkpoint

    folder, row = tiny_student(architecture, task), ARCHITECTURES[architecture]
    model = load_checkpoint(folder, TASKS[task])
    assert sum(parameter.numel() for parameter in model.parameters()) < 5_000_000
    assert isinstance(getattr(model.config, row.keys.max_positions), int)
    if TASKS[task].has_labels:
        assert tuple(model.config.id2label.values()) == LABELS
    graph = export_graph(folder, TASKS[task])
    names = graph.forward.__code__.co_varnames[1 : len(row.inputs) + 1]
    assert names == row.inputs


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_architecture_is_found_by_its_model_type(architecture):
    assert architectures.get(architecture).model_type == architecture
