"""What tests share: tiny random students, recipes on disk, the real command, and one tiny line made by it."""

import contextlib
import functools
import gc
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pieces
import processors
import psutil
import pytest
import tomli_w
from durations import Durations
from margins import Margins
from quick import Quick
from store import Store, code_and_tools
from warm import Workers, session

from pipeline import tasks
from pipeline.architectures import ARCHITECTURES, register_classes
from pipeline.checkpoint import sentences
from pipeline.checkpoint import source as student
from pipeline.cli import app as cli
from pipeline.convert import stage as convert
from pipeline.devices import host
from pipeline.execution import pace
from pipeline.planning import branches, checkpoints
from pipeline.planning import run as running
from pipeline.planning.branches import Branch, StageName
from pipeline.planning.checkpoints import FinishedCheckpoints
from pipeline.planning.request import Request
from pipeline.recipe import loading as recipes
from pipeline.vectors.contract import SPACE

REPOSITORY = Path(__file__).resolve().parent.parent
LABELS = ("negative", "neutral", "positive")
TINY_TARGETS = {"litert": {"schemes": ["fp32", "int8_dynamic"]}, "executorch": {"schemes": ["fp32"]}}
PAIRS = [
    (architecture, task)
    for architecture, row in ARCHITECTURES.items()
    for task, due in tasks.TASKS.items()
    if not (row.headless and due.uses_head)
]
"""Every architecture with every task that it has."""
COMMAND = [sys.executable, "-m", "pipeline"]

_SEED_SHIFT = "TESTS_SEED_SHIFT"
_WORKER_BYTES = 4 << 30
"""Memory of one pytest worker with the toolchains that its tests start."""


# --- runs of pytest ----------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test-durations` asks for."""
    parser.addoption("--keep-durations", action="store_true", help="write every test's seconds to build/")
    parser.addoption("--quick", action="store_true", help="only tests that need no toolchain")
    parser.addoption("--margins", metavar="FILE", help="write how far each number stands from its bound")
    parser.addoption("--seed-shift", type=int, default=0, help="add to every test's seed")
    parser.addoption(
        "--processor", choices=processors.SETTINGS, help="compute as another processor does, where libraries let us"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Count seconds; torch takes the cores that are a worker's own, since two that take all wait for each other."""
    # A shell that starts this in the background (`make test &`) has commands ignore Ctrl-C, and ours inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As in a worker, see `pipeline.execution.worker.main`.
    gc.set_threshold(100_000, 20, 100)
    config.pluginmanager.register(Durations(config))
    if config.getoption("quick"):
        config.pluginmanager.register(Quick())
    if config.getoption("processor"):
        # Libraries read the variables when they are imported, which this process has done already for some.
        if not config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
            raise pytest.UsageError("--processor limits processes that begin after it; give -n 1 as well.")
        processors.set_up(config.getoption("processor"))
    if config.getoption("margins"):
        config.pluginmanager.register(Margins(config))
    os.environ[_SEED_SHIFT] = str(config.getoption("seed_shift"))
    # Set before a worker begins, which imports NumPy before it comes here: OpenBLAS counts its threads at import.
    if workers := config.getoption("numprocesses", None):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, str(max(1, host.usable_cores() // workers)))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say as which processor the tests compute."""
    setting = config.getoption("processor")
    return f"as on another processor: {setting}, {processors.SETTINGS[setting]}" if setting else None


def pytest_xdist_auto_num_workers() -> int:
    """Return as many workers as there are cores, and as memory holds."""
    return max(1, min(host.usable_cores(), psutil.virtual_memory().total // _WORKER_BYTES))


def seed_of(name: str) -> int:
    """Return a seed that is the same in every run and on every machine."""
    shift = int(os.environ.get(_SEED_SHIFT, "0"))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") + shift


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return seed_of(request.node.name)


# --- tiny students -----------------------------------------------------------------------------------------------


def write_student(folder: Path, architecture: str, task: str, **sizes: int) -> Path:
    """Write a random checkpoint in Hugging Face layout: config, safetensors weights and tokenizer.

    Args:
        folder: where.
        architecture: a row of `ARCHITECTURES`, whose tiny config is taken.
        task: a row of `pipeline.tasks`.
        sizes: of the config, in place of the tiny ones.
    """
    import torch
    import transformers

    register_classes()
    options: dict[str, Any] = dict(ARCHITECTURES[architecture].tiny_config) | {"vocab_size": pieces.SIZE} | sizes
    if tasks.get(task).has_labels:
        options |= {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    elif task == "regression":
        options |= {"num_labels": 1}
    options |= {"problem_type": tasks.get(task).problem_type} if tasks.get(task).least_labels else {}
    config = transformers.AutoConfig.for_model(architecture, **options)
    torch.manual_seed(seed_of(f"{architecture}-{task}"))
    getattr(transformers, tasks.get(task).auto_class).from_config(config).save_pretrained(folder)
    pieces.write(folder)
    return folder


@pytest.fixture(scope="session")
def run_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """What is made once a run, by whichever worker comes first."""
    base = tmp_path_factory.getbasetemp()
    return Store((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "store")


@pytest.fixture(scope="session")
def tiny_student(run_store: Store) -> Callable[[str, str], Path]:
    """A factory of random students, two layers of 64; each is made once, so tests copy one before they change it."""

    @functools.cache
    def make(architecture: str = "bert", task: str = "embedding") -> Path:
        name = f"student-{architecture}-{task}"
        return run_store.get(name, lambda folder: write_student(folder, architecture, task))

    return make


# --- recipes -----------------------------------------------------------------------------------------------------


def recipe_values(**overrides: Any) -> dict[str, Any]:
    """Return a small, valid recipe; sections given replace whole sections, None leaves a key out."""
    values: dict[str, Any] = {
        "name": "tiny",
        "task": "embedding",
        "student": {"source": "bundled:all-MiniLM-L6-v2"},
        "convert": {"sequence_lengths": [8, 32]},
        "targets": TINY_TARGETS,
    }
    values = {key: value for key, value in (values | overrides).items() if value is not None}
    student = values.get("student")
    source = str(student.get("source", ":")) if isinstance(student, dict) else ":"
    if values.get("task") == "embedding" and ":" not in source and not sentences.has_modules(Path(source)):
        # A bare encoder's pooling has to be named.
        values["student"] = {
            key: value for key, value in {"pooling": "mean", **values["student"]}.items() if value is not None
        }
    return values


def recipe_file(folder: Path, **overrides: Any) -> Path:
    """Write `recipe_values(**overrides)` into a folder and return the file."""
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(recipe_values(**overrides)), encoding="utf-8")
    return path


class Silent:
    """Progress that nobody reads."""

    def started(self, step: str) -> None:
        """Nothing."""

    def advanced(self, step: str, what: str, fraction: float) -> None:
        """Nothing."""

    def finished(self, step: Any) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


def branch_of(path: Path, until: StageName = "compress") -> Branch:
    """Do what every verb does before any work; return the recipe's way to its checkpoint."""
    found = branches.branch_for(*recipes.read_recipe(str(path)))
    checkpoints.prepare(found, until, FinishedCheckpoints())
    return found


def check_trial(tried: student.Source, made: Path, *, sizes_are_measured: bool = False) -> None:
    """Check that what a stage left on torch's meta device is what it wrote: config, names and shapes of its tensors.

    Args:
        tried: what the trial returned.
        made: the folder that the stage wrote.
        sizes_are_measured: whether the sizes of layers follow from weights, which a trial does not have.
    """
    written = student.inspect_folder(made, origin=made.name, licence=None)
    # The id of a space is a digest of weights, which a trial does not have.
    unwritten = ("transformers_version", "dtype", "_name_or_path", SPACE)
    tried_config, config = (
        {key: value for key, value in one.config.items() if key not in unwritten} for one in (tried, written)
    )
    assert tried_config == config
    shapes, expected = tried.tensor_shapes(), written.tensor_shapes()
    assert sorted(shapes) == sorted(expected)
    if not sizes_are_measured:
        assert shapes == expected


def planned(path: Path, until: StageName = "compress") -> dict[str, bool]:
    """Return which nodes a verb would make, by name; the build folder lies beside the recipe."""
    parsed, file = recipes.read_recipe(str(path))
    request = Request(parsed, file, until, convert.targets(parsed))
    return {step.name: step.made for step in running.plan(request, path.parent / "build").steps}


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What a run of the command left."""

    rc: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """What `--json` printed."""
        return json.loads(self.stdout)


def environment(**extra: str) -> dict[str, str]:
    """Return this process's environment without the variables that steer PocketBERT."""
    steering = ("POCKETBERT_", "HF_", "FORCE_COLOR", "COLUMNS")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(steering)}
    paths = processors.python_path(REPOSITORY, variables=kept | extra)
    return kept | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": paths, "COLUMNS": "200"} | extra


def run_command(*args: str | Path, cwd: Path, **extra: str) -> Outcome:
    """Run `python -m pipeline` to its end in a folder, with variables on top of the environment."""
    command = [*COMMAND, *map(str, args)]
    done = subprocess.run(
        command, cwd=cwd, env=environment(**extra), capture_output=True, encoding="utf-8", timeout=800
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def pocketbert(tmp_path: Path) -> Callable[..., Outcome]:
    """The command as a real process, in the test's own folder."""
    return functools.partial(run_command, cwd=tmp_path)


@contextlib.contextmanager
def collected(
    descriptor: int, redirect: Callable[[Any], contextlib.AbstractContextManager[Any]]
) -> Iterator[list[str]]:
    """Collect what Python and native code write to a stream, as a process's own would be."""
    found: list[str] = []
    kept = os.dup(descriptor)
    with tempfile.TemporaryFile(buffering=0) as file:
        os.dup2(file.fileno(), descriptor)
        try:
            with open(os.dup(file.fileno()), "w", buffering=1, encoding="utf-8") as text, redirect(text):
                yield found
        finally:
            os.dup2(kept, descriptor)
            os.close(kept)
            file.seek(0)
            found.append(file.read().decode("utf-8"))


def run_command_here(*args: str | Path, cwd: Path, **extra: str) -> Outcome:
    """Run the command's `main` to its end in this process, with workers that earlier tests left.

    Each process of `run_command` imports the toolchains again. Here variables of other libraries than ours stay.
    """
    with pytest.MonkeyPatch.context() as patch, session().lent(patch):
        for name in [name for name in os.environ if name.startswith("POCKETBERT_")]:
            patch.delenv(name)
        for name, value in {"COLUMNS": "200", **extra}.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["pocketbert", *map(str, args)])
        with (
            collected(1, contextlib.redirect_stdout) as said,
            collected(2, contextlib.redirect_stderr) as complained,
            pytest.raises(SystemExit) as ended,
        ):
            cli.main()
    return Outcome(int(str(ended.value.code)), "".join(said), "".join(complained))


@pytest.fixture(scope="module")
def one_core() -> Iterator[None]:
    """Let benchmarks run with one thread alone: of each variant and thread count they start a process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host, "usable_cores", lambda: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def workers() -> Iterator[Workers]:
    """Workers that one test leaves to the next."""
    yield session()
    session().end()


@pytest.fixture(scope="session", autouse=True)
def own_pace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tiny students take out of the user's record of this machine's pace."""
    folder = tmp_path_factory.mktemp("pace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pace, "state_folder", lambda: folder)
        yield


@pytest.fixture
def command_here(tmp_path: Path) -> Callable[..., Outcome]:
    """The command's `main`, in this process and the test's own folder, with workers that earlier tests left."""
    return functools.partial(run_command_here, cwd=tmp_path)


# --- one tiny line -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TinyLine:
    """A verified line of a tiny random student, made by the command. Tests copy it before they change anything."""

    recipe: Path
    build: Path
    outcome: Outcome
    """Outcome of the run that made it, with --json."""

    @property
    def folder(self) -> Path:
        return self.build / "tiny"

    def copy(self, place: Path) -> "TinyLine":
        """Copy recipe and artifacts; the recipe's student folder stays where it is."""
        place.mkdir(parents=True, exist_ok=True)
        recipe = Path(shutil.copy(self.recipe, place))
        return TinyLine(recipe, Path(shutil.copytree(self.build, place / "build", symlinks=True)), self.outcome)


@pytest.fixture(scope="session")
def tiny_line(request: pytest.FixtureRequest) -> TinyLine:
    """Student, LiteRT fp32 and int8_dynamic, ExecuTorch fp32, reference and verdicts, by `pocketbert verify`.

    The verdict of litert-int8_dynamic is failed, by a bound that nothing can keep; the other two passed. It is kept in
    build/ for the next run on such a processor, as long as neither code nor tools change.
    """

    def make(folder: Path) -> None:
        source = write_student(folder / "source", "bert", "embedding")
        impossible = {"gates": {"int8_dynamic": {"min_sqnr_db": 500}}}
        recipe = recipe_file(folder, student={"source": str(source), "random_weights": True}, verify=impossible)
        outcome = run_command_here("verify", recipe, "--build", folder / "build", "--json", cwd=folder)
        assert outcome.rc == 1, outcome.stdout[-3000:] + outcome.stderr[-3000:]
        (folder / "outcome.json").write_text(json.dumps(asdict(outcome)), encoding="utf-8")

    store, name = Store(REPOSITORY / "build" / "tests"), f"line-{processors.here()}"
    if request.config.getoption("quick") and not store.has(name, code_and_tools()):
        pytest.skip("the tiny line is not made yet, for which toolchains are needed; `make test` makes it")
    folder = store.get(name, make, code_and_tools())
    outcome = Outcome(**json.loads((folder / "outcome.json").read_text(encoding="utf-8")))
    return TinyLine(folder / "recipe.toml", folder / "build", outcome)


@pytest.fixture(scope="session")
def thorough_line(tiny_line: TinyLine, run_store: Store) -> TinyLine:
    """The tiny line with thorough verdicts of both files that pass: each was converted once more. Tests copy it."""

    def make(folder: Path) -> None:
        line = tiny_line.copy(folder)
        targets = ("--target", "litert:fp32", "--target", "executorch:fp32")
        outcome = run_command_here(
            "verify", line.recipe, "--thorough", *targets, "--build", line.build, "--json", cwd=folder
        )
        assert outcome.rc == 0, outcome.stdout + outcome.stderr

    folder = run_store.get("thorough", make)
    return TinyLine(folder / tiny_line.recipe.name, folder / tiny_line.build.name, tiny_line.outcome)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two threads of a busy machine wait for each other, which takes longer than tiny models."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def randomised(run_store: Store) -> Callable[..., Path]:
    """A factory of tiny students in which everything matters; tests do not change them."""
    from faults import students
    from faults.students import few

    @functools.cache
    def make(architecture: str = "bert", task: str = "embedding") -> Path:
        name = f"randomised-{architecture}-{task}"
        return run_store.get(name, lambda folder: students.source(few(architecture, task), folder))

    return make


@pytest.fixture(scope="session")
def converted(workers: Workers) -> Callable[..., Path]:
    """A factory of converted tiny students: the model folder of a target, which tests copy before they change it.

    It is what `make faults` converts: one for each student and target, made by whichever worker comes first, and kept
    in build/ until its tools, the code that converts or the student change.
    """
    from faults import line
    from faults.students import Student, few
    from faults.workers import WorkerPool

    @functools.cache
    def make(target: str, student: Student = few()) -> Path:  # noqa: B008
        pool = WorkerPool(line.BUILD / "logs", 1, workers.start)
        with pool.at_work(), pool.take() as pair:
            return line.open_line(student, pair).convert(convert.Target(*target.split("-", 1)), pair).path

    return make
