"""The support matrix: every architecture × task × format × scheme, converted and judged by the stages themselves.

Weights are random and declared so, which exempts them from the above-chance gate alone. What a backend does not support
is refused by the recipe with its reason; nothing is left out in silence. Pairs of architecture and task also go through
the command, as a user would take a folder that `save_pretrained` wrote: four in
`make test`, eleven in `make test-full`.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import PAIRS, Outcome, recipe_file
from faults import clean, students
from faults.__main__ import Bench
from faults.line import BUILD
from faults.run import Cell
from faults.students import Student, few
from rich.console import Console
from store import only_run

from pipeline import formats
from pipeline.architectures import ARCHITECTURES, UNSUPPORTED
from pipeline.schemes import supported
from pipeline.tasks import TASKS
from pipeline.verify import stage as verify

SAMPLE = {
    ("roberta", "token_classification"): {"litert": ["int8_dynamic"]},
    ("mobilebert", "question_answering"): {"litert": ["fp32"]},
    ("electra", "regression"): {"coreml": ["fp16"]},
    ("xlm-roberta", "embedding"): {"executorch": ["int8_dynamic"]},
    ("mpnet", "embedding"): {"litert": ["int8_dynamic"]},
    ("static", "embedding"): {"coreml": ["int8_weight_only"]},
    ("roberta", "multi_label_classification"): {"executorch": ["int8_dynamic"]},
    ("electra", "multi_regression"): {"coreml": ["int8_weight_only"]},
}
"""What of it `make test` runs: each new architecture, task and format at least once."""


MORE = (
    ("bert", "classification"),
    ("bert", "question_answering"),
    ("distilbert", "token_classification"),
    ("albert", "regression"),
    ("roberta", "embedding"),
    ("xlm-roberta", "classification"),
    ("mobilebert", "classification"),
    ("mpnet", "embedding"),
    ("bert", "multi_label_classification"),
    ("distilbert", "multi_regression"),
)
"""What else goes through the command in `make test-full`, at every scheme."""


def every_target() -> dict[str, list[str]]:
    answers = {name: supported(name) for name in formats.NAMES}
    return {name: schemes for name, schemes in answers.items() if schemes}


CASES = [pytest.param(*pair, targets, [64], id="-".join(pair)) for pair, targets in SAMPLE.items()]
CASES += [
    pytest.param(*pair, every_target(), [16, 64], id="-".join((*pair, "every")), marks=pytest.mark.full)
    for pair in MORE
]


@pytest.mark.numeric
@pytest.mark.parametrize(("architecture", "task", "targets", "lengths"), CASES)
def test_a_saved_folder_goes_through_the_command(
    architecture: str,
    task: str,
    targets: dict[str, list[str]],
    lengths: list[int],
    command_here: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    students.source(few(architecture, task), source)
    recipe = recipe_file(
        tmp_path,
        task=task,
        student={"source": "source", "random_weights": True},
        convert={"sequence_lengths": lengths},
        targets={name: {"schemes": schemes} for name, schemes in targets.items()},
    )
    outcome = command_here("verify", recipe, "--json")
    assert "verdicts" in outcome.document, outcome.stdout
    verdicts = outcome.document["verdicts"]
    missed = [target for target, verdict in verdicts.items() if verdict != "passed"]
    assert {
        target: verify.read_parity(tmp_path / "build" / "tiny" / target / "parity").reasons for target in missed
    } == {}
    assert set(verdicts) == {f"{name}-{scheme}" for name, schemes in targets.items() for scheme in schemes}
    assert outcome.rc == 0


@pytest.fixture(scope="module")
def judged() -> Iterator[Callable[[Student], dict[str, Cell]]]:
    """Converts and judges a student for every target, by workers that live on from one student to the next.

    What was judged before by the same code is kept in build/.
    """
    bench = Bench(formats.NAMES, Console(stderr=True))
    with only_run(BUILD, waiting=lambda: None), bench.at_work() as worker_pool:

        def judge(student: Student) -> dict[str, Cell]:
            bench.export(worker_pool, [student])
            return {target: cell for (which, target), cell in bench.clean.items() if which == str(student)}

        yield judge


@pytest.mark.full
@pytest.mark.parametrize(("architecture", "task"), PAIRS)
def test_every_cell_passes(architecture: str, task: str, judged: Callable[[Student], dict[str, Cell]]) -> None:
    # A question of few pieces fills the 32 places of a row.
    student = Student(architecture, task) if task == "question_answering" else few(architecture, task)
    found = judged(student)
    # Schemes that are calibrated are judged on students that need it, see `settings`.
    assert set(found) == {str(target) for _, target in clean.exports([student], formats.NAMES)}
    said = {target: cell.stopped or [gate.detail for gate in cell.fired] for target, cell in found.items()}
    assert {target: said[target] for target, cell in found.items() if cell.verdict != "passed"} == {}


def test_the_sample_has_every_new_architecture_task_and_format() -> None:
    assert {architecture for architecture, _ in SAMPLE} == set(ARCHITECTURES) - {"bert", "distilbert", "albert"}
    assert {task for _, task in SAMPLE} == set(TASKS) - {"classification"}
    assert {name for targets in SAMPLE.values() for name in targets} == set(formats.NAMES)


@pytest.mark.parametrize("model_type", UNSUPPORTED)
def test_an_unsupported_architecture_is_refused_with_its_reason(
    model_type: str, command_here: Callable[..., Outcome], tmp_path: Path, tiny_student: Callable[..., Path]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in tiny_student("bert", "classification").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    config: dict[str, Any] = json.loads((source / "config.json").read_text()) | {"model_type": model_type}
    (source / "config.json").write_text(json.dumps(config))
    outcome = command_here("student", recipe_file(tmp_path, task="classification", student={"source": "source"}))
    assert outcome.rc == 2
    assert UNSUPPORTED[model_type][1:] in " ".join(outcome.stderr.split())
