"""The page's answers beside those of `pocketbert predict`, for every task but embeddings, which `check` tries.

The students are tiny and random: their answers mean nothing, and depend on every token of the text.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import recipe_file, write_student
from tokenizers import Tokenizer

from apps import toolchains
from apps.browser.chromium import Page
from apps.browser.serving import FOLDER, POCKETBERT, ask, opened_file, served, shown
from pipeline import tasks

_TEXT = "The quick brown fox jumps over the lazy dog near the old bridge, and nobody minds."
_QUESTION = "Who plays?"
_PASSAGE = "A man is playing a guitar in the park. The train was late again, so we took the bus."
_ROWS = "[...document.querySelectorAll('#answer tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
_MAIN = "document.querySelector('#answer .main').textContent"
_MARKED = "[...document.querySelectorAll('#answer mark')].map((mark) => mark.firstChild.textContent)"
_WEBGPU = ("--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan")
"""Chromium's options for a graphics processor that it computes itself: right answers, and no latency of any meaning."""
_PERCENT = 0.06
"""Largest difference of a probability in percent, of which the page shows one decimal."""
_VALUE = 6e-5


def check() -> str:
    """Convert, verify and serve a student of each task, and compare one answer."""
    compared = [name for name in tasks.TASKS if _COMPARED.get(tasks.get(name).output_kind)]
    assert len(compared) == len(tasks.TASKS) - 1, compared
    for name in compared:
        _check(name)
    return f"{len(compared)} tasks, answers as `pocketbert predict` gives them, one on WebGPU too"


def _check(task: str) -> None:
    folder = FOLDER / "tasks" / task
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "student").exists():
        write_student(folder / "student", "bert", task)
    student = {"source": str(folder / "student"), "random_weights": True}
    kind = tasks.get(task).output_kind
    # Verification's own questions need room for a passage beside them.
    lengths = [64] if kind == "spans" else [8, 32]
    recipe = recipe_file(
        folder,
        task=task,
        student=student,
        convert={"sequence_lengths": lengths},
        targets={"litert": {"schemes": ["fp32"]}},
    )
    place = ["--build", str(folder / "build")]
    toolchains.run([*POCKETBERT, "verify", str(recipe), *place], toolchains.REPOSITORY)
    first, second = (_QUESTION, _PASSAGE) if kind == "spans" else (_TEXT, None)
    wanted = _predicted(folder / "build" / "tiny" / "litert-fp32" / "model", first, second)
    with served(recipe, folder / "build") as document, shown(document) as page:
        opened_file(page, 0)
        ask(page, first, second or "")
        _COMPARED[kind](page, wanted)
        if kind == "logits":
            with shown(document, _WEBGPU) as other:
                opened_file(other, 0, "webgpu")
                ask(other, first, "")
                _COMPARED[kind](other, wanted)


def refused(tokenizer: Path) -> str:
    """Serve a student whose tokenizer the page does not have: its file is opened and timed, and takes no text."""
    folder = FOLDER / "tasks" / "refused"
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    if not (folder / "student").exists():
        padding = library.token_to_id("<pad>")
        assert padding is not None
        sizes = {"vocab_size": library.get_vocab_size(), "pad_token_id": padding}
        made = write_student(folder / "student", "bert", "embedding", **sizes)
        shutil.copy(tokenizer / "tokenizer.json", made)
        (made / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "unk_token": "<unk>"}))
    student = {"source": str(folder / "student"), "random_weights": True}
    recipe = recipe_file(folder, student=student, targets={"litert": {"schemes": ["fp32"]}})
    toolchains.run([*POCKETBERT, "verify", str(recipe), "--build", str(folder / "build")], toolchains.REPOSITORY)
    with served(recipe, folder / "build") as document, shown(document) as page:
        facts = opened_file(page, 0)
        why = str(page.evaluate("document.getElementById('refused').textContent"))
        assert "its tokenizer has a replacement of" in why, why
        assert page.evaluate("document.getElementById('ask').hidden")
    return f"golden rows {facts['golden']}; {why}"


def _predicted(model: Path, first: str, second: str | None) -> dict[str, Any]:
    """Return what the command says of the texts; it may write more than the document beside it."""
    command = [sys.executable, "-m", "pipeline", "predict", str(model), first, "--json"]
    said = toolchains.run([*command, *(["--pair", second] if second else [])], toolchains.REPOSITORY)
    (found,) = json.loads(said[said.index("{\n") :])["predictions"]
    return dict(found)


def _labels(page: Page, wanted: dict[str, Any]) -> None:
    rows = {name: float(share.removesuffix(" %")) for name, share in page.evaluate(_ROWS)}
    assert rows.keys() == wanted["labels"].keys(), (rows, wanted)
    off = {name: rows[name] - 100 * share for name, share in wanted["labels"].items()}
    assert all(abs(one) < _PERCENT for one in off.values()), off


def _main_label(page: Page, wanted: dict[str, Any]) -> None:
    _labels(page, wanted)
    best = max(wanted["labels"], key=lambda name: wanted["labels"][name])
    assert page.evaluate(_MAIN) == best, wanted


def _given(page: Page, wanted: dict[str, Any]) -> None:
    _labels(page, wanted)
    shown = page.evaluate(_MAIN)
    assert set(shown.split(", ")) == (set(wanted["given"]) or {"no label"}), (shown, wanted)


def _value(page: Page, wanted: dict[str, Any]) -> None:
    assert abs(float(page.evaluate(_MAIN)) - wanted["value"]) < _VALUE, (page.evaluate(_MAIN), wanted["value"])


def _values(page: Page, wanted: dict[str, Any]) -> None:
    rows = {name: float(value) for name, value in page.evaluate(_ROWS)}
    assert rows.keys() == wanted["values"].keys(), rows
    assert all(abs(rows[name] - value) < _VALUE for name, value in wanted["values"].items()), (rows, wanted["values"])


def _entities(page: Page, wanted: dict[str, Any]) -> None:
    found = [_TEXT[one["start"] : one["end"]] for one in wanted["entities"]]
    assert found, "the student tags nothing, and nothing is compared"
    assert page.evaluate(_MARKED) == found, (page.evaluate(_MARKED), found)


def _answer(page: Page, wanted: dict[str, Any]) -> None:
    found = _PASSAGE[wanted["answer"]["start"] : wanted["answer"]["end"]]
    assert found, "the student finds nothing, and nothing is compared"
    assert page.evaluate(_MAIN) == found, (page.evaluate(_MAIN), found)


_COMPARED: dict[str, Callable[[Page, dict[str, Any]], None]] = {
    "logits": _main_label,
    "multi_label": _given,
    "value": _value,
    "values": _values,
    "token_logits": _entities,
    "spans": _answer,
}
