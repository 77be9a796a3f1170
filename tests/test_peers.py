"""The comparison with other runtimes: which targets it makes, and what it refuses; `make commands` runs it whole."""

from pathlib import Path
from typing import Any

import pytest
from conftest import recipe_file

from benchmarks import peers
from pipeline.convert.stage import targets
from pipeline.recipe import loading


@pytest.mark.parametrize("name", ["minilm", "minilm-all"])
def test_what_is_compared_is_made_whatever_the_recipe_has(name: str) -> None:
    """The default recipe has no ExecuTorch fp32."""
    recipe, _ = loading.read_recipe(name)
    wider = peers._with_targets(recipe)
    assert set(targets(wider)) == {*targets(recipe), *peers.OURS}
    for backend in recipe.targets:
        assert wider.lengths(backend) == recipe.lengths(backend)


def test_a_recipe_of_one_backend_gets_the_other(tmp_path: Path) -> None:
    recipe, _ = loading.read_recipe(str(recipe_file(tmp_path, targets={"litert": {"schemes": ["fp16"]}})))
    assert set(peers.OURS) < set(targets(peers._with_targets(recipe)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another task": ({"task": "regression"}, "peers are compared by the embeddings"),
    "a smaller student": ({"prune": {"compute": 0.5}}, "Name the recipe of the whole student"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides, says = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    assert peers.main([str(recipe_file(tmp_path, **overrides)), "--peer", "pytorch"]) == 2
    assert says in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "build").exists()


def test_onnxruntime_that_is_not_installed_is_said_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_ONNX", ("onnxruntime_that_nobody_has",))
    monkeypatch.chdir(tmp_path)
    assert peers.main([str(recipe_file(tmp_path)), "--peer", "onnxruntime"]) == 3
    said = capsys.readouterr().err.replace("\n", " ")
    assert "onnxruntime_that_nobody_has not installed; `make peers` installs the extra" in said
    assert not (tmp_path / "build").exists()
