"""The support matrix: every architecture × task × format × scheme, converted and judged by the command itself.

Weights are random and declared so, which exempts them from the above-chance gate alone. What a backend does not support
is refused by the recipe with its reason; nothing is left out in silence.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, recipe_file
from faults import students
from faults.students import Student

from pipeline import backends, verify
from pipeline.architectures import ARCHITECTURES, UNSUPPORTED
from pipeline.quantize import SCHEMES
from pipeline.tasks import TASKS

LENGTHS = [16, 32]
SAMPLE = {
    ("roberta", "token_classification"): {"litert": ["int8_dynamic"], "coreml": ["fp16"], "executorch": ["fp32"]},
    ("mobilebert", "question_answering"): {"litert": ["fp32"], "coreml": ["int8_weight_only"]},
    ("electra", "regression"): {"executorch": ["int8_dynamic"], "coreml": ["fp32"]},
    ("xlm-roberta", "embedding"): {"litert": ["fp16"], "executorch": ["int8_weight_only"]},
}
"""What of it `make test` runs: each new architecture, task and format at least once."""


def every_target() -> dict[str, list[str]]:
    answers = {
        name: [scheme for scheme in SCHEMES if backends.get(name).support(scheme, minimum_ios=18).supported]
        for name in backends.NAMES
    }
    return {name: schemes for name, schemes in answers.items() if schemes}


CASES = [pytest.param(*pair, targets, id="-".join(pair)) for pair, targets in SAMPLE.items()]
CASES += [
    pytest.param(architecture, task, every_target(), id=f"{architecture}-{task}-every", marks=pytest.mark.full)
    for architecture in ARCHITECTURES
    for task in TASKS
]


@pytest.mark.parametrize(("architecture", "task", "targets"), CASES)
def test_every_cell_passes(
    architecture: str, task: str, targets: dict[str, list[str]], pocketbert: Callable[..., Outcome], tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    students.source(Student(architecture, task), source)
    recipe = recipe_file(
        tmp_path,
        task=task,
        student={"source": "source", "random_weights": True},
        convert={"sequence_lengths": LENGTHS},
        targets={name: {"schemes": schemes} for name, schemes in targets.items()},
    )
    outcome = pocketbert("verify", recipe, "--json")
    assert "verdicts" in outcome.document, outcome.stdout
    verdicts = outcome.document["verdicts"]
    missed = [target for target, verdict in verdicts.items() if verdict != "passed"]
    assert {target: verify.read(tmp_path / "build" / "tiny" / target / "parity").reasons for target in missed} == {}
    assert set(verdicts) == {f"{name}-{scheme}" for name, schemes in targets.items() for scheme in schemes}
    assert outcome.rc == 0


def test_the_sample_has_every_new_architecture_task_and_format() -> None:
    assert {architecture for architecture, _ in SAMPLE} == set(ARCHITECTURES) - {"bert", "distilbert", "albert"}
    assert {task for _, task in SAMPLE} == set(TASKS) - {"classification"}
    assert {name for targets in SAMPLE.values() for name in targets} == set(backends.NAMES)


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_an_unsupported_architecture_is_refused_with_its_reason(
    model_type: str, pocketbert: Callable[..., Outcome], tmp_path: Path, tiny_student: Callable[..., Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in tiny_student("bert", "classification").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    config: dict[str, Any] = json.loads((source / "config.json").read_text()) | {"model_type": model_type}
    (source / "config.json").write_text(json.dumps(config))
    outcome = pocketbert("student", recipe_file(tmp_path, task="classification", student={"source": "source"}))
    assert outcome.rc == 2
    assert UNSUPPORTED[model_type][1:] in " ".join(outcome.stderr.split())
