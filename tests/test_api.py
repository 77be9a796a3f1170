"""The public package: what `import pocketbert` gives, and that it is light."""

import subprocess
import sys
from pathlib import Path

import pocketbert
import pytest
from conftest import REPOSITORY, environment
from pocketbert import errors, tasks

import pipeline
from pipeline import errors as own_errors
from pipeline.convert import isolated, model
from pipeline.metrics import outputs
from pipeline.trust import signing

HOME = REPOSITORY / "pipeline" / "api"


def test_what_is_public_is_pocketberts_own_and_not_a_copy() -> None:
    assert pocketbert.load is isolated.load
    assert (pocketbert.Model, pocketbert.IsolatedModel) == (model.Model, isolated.IsolatedModel)
    assert (pocketbert.Prediction, pocketbert.LabelScores) == (model.Prediction, model.LabelScores)
    assert (pocketbert.Entity, pocketbert.Span) == (outputs.Entity, outputs.Span)
    assert pocketbert.__version__ == pipeline.__version__
    assert tasks.TASKS[tasks.get("embedding").name].output_names == ("sentence_embedding",)
    assert all(getattr(pocketbert, name) is not None for name in dir(pocketbert))
    with pytest.raises(AttributeError, match=r"has no attribute 'lode'; there are: Entity, .* load"):
        pocketbert.lode  # noqa: B018


def test_every_error_is_public() -> None:
    found = {name for name, one in vars(own_errors).items() if isinstance(one, type) and issubclass(one, Exception)}
    assert set(errors.__all__) == found | {signing.SignatureRefused.__name__}
    assert all(issubclass(getattr(errors, name), errors.PipelineError) for name in errors.__all__)


def test_an_error_of_load_is_the_public_one(tmp_path: Path) -> None:
    with pytest.raises(errors.InputError, match="nowhere does not exist"):
        pocketbert.load(tmp_path / "nowhere")


def test_importing_it_loads_no_toolchain() -> None:
    code = "import sys, pocketbert; print({'torch', 'transformers', 'numpy', 'typer'} & sys.modules.keys())"
    paths = f"{HOME}:{REPOSITORY}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment() | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")
