"""Run a converted file in a process of its own, so that a damaged file cannot take the caller's down."""

import contextlib
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, overload

from pipeline import artifact
from pipeline.artifact import Artifact
from pipeline.convert import zero_shot
from pipeline.convert.model import (
    LabelScores,
    Model,
    Prediction,
    model_folder,
    open_checked,
    text_pairs,
    warn_unprompted,
)
from pipeline.errors import PipelineError
from pipeline.execution.worker import Worker
from pipeline.formats import signature
from pipeline.trust import origin, signing

PATIENCE_SECONDS = 120.0
"""Time limit of an answer. The first one imports a runtime, five seconds on a laptop; a text takes milliseconds."""


class IsolatedModel:
    """A converted file that runs in a child process. It answers as `Model` does, a few milliseconds later.

    The runtimes are C++ that trusts its input: a file with one wrong offset can end the process that opens it. Here
    that process is a child, and its end is a `WorkerDied`.
    """

    def __init__(self, folder: Path, *, threads: int = 1, patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Open a model folder in a new process.

        Args:
            folder: the model folder, or that of another head in it; its hashes are checked first.
            threads: threads of the runtime.
            patience_seconds: how long an answer may take before the process is ended.

        Raises:
            ArtifactError: the folder is no finished model artifact, or was changed.
            WorkerDied: the runtime crashed or hung on the file.
            ToolchainError: the runtime refuses the file, is absent, or is too old.
        """
        artifact.load(signature.root(folder))
        self.folder = folder
        self.signature = signature.read(folder)
        handle, name = tempfile.mkstemp(prefix="pocketbert-", suffix=".log")
        os.close(handle)
        self._log = Path(name)
        self._worker = Worker(self._log, patience_seconds=patience_seconds)
        # A model that nobody closes is ended with its last reference, as one in this process is.
        self._ended = weakref.finalize(self, _end, self._worker, self._log)
        try:
            self._worker.call(_open, folder, threads)
        except BaseException as error:
            self._end(keep_log=self._named_in(error))
            raise

    def predict(
        self, texts: str | Sequence[str | tuple[str, str]], second: str | None = None, *, prompt: str | None = None
    ) -> list[Prediction]:
        """Encode, run and post-process texts or pairs, see `Model.predict`.

        Raises:
            InputError: a text without any character, no text or pair at all, or the model has no such prompt.
            WorkerDied: the runtime crashed or hung.
        """
        rows = text_pairs(texts, second)
        warn_unprompted(self.signature, prompt)
        return self._worker.call(_predict, rows, prompt)

    def zero_shot(
        self, text: str, labels: Sequence[str], template: str = zero_shot.TEMPLATE, *, multi_label: bool = False
    ) -> LabelScores:
        """Return the probability of labels of one's own, see `Model.zero_shot`.

        Raises:
            InputError: the text, the labels or the template are empty, or the model is none of inference.
            WorkerDied: the runtime crashed or hung.
        """
        return self._worker.call(_zero_shot, text, list(labels), template, multi_label=multi_label)

    def close(self) -> None:
        """End the process."""
        self._end(keep_log=False)

    def _end(self, *, keep_log: bool) -> None:
        if keep_log:
            self._ended.detach()
            self._worker.close()
        else:
            self._ended()

    def _named_in(self, error: BaseException | None) -> bool:
        """Return whether an error sends its reader to the log."""
        return isinstance(error, PipelineError) and str(self._log) in str(error)

    def __enter__(self) -> Self:
        """Return the model itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        self._end(keep_log=self._named_in(error))


@overload
def load(
    path: str | Path,
    *,
    threads: int = 1,
    isolated: None = None,
    trusted: Sequence[str | Path] = (),
    head: str | None = None,
) -> Model | IsolatedModel: ...
@overload
def load(
    path: str | Path,
    *,
    threads: int = 1,
    isolated: Literal[False],
    trusted: Sequence[str | Path] = (),
    head: str | None = None,
) -> Model: ...
@overload
def load(
    path: str | Path,
    *,
    threads: int = 1,
    isolated: Literal[True],
    trusted: Sequence[str | Path] = (),
    head: str | None = None,
) -> IsolatedModel: ...
def load(
    path: str | Path,
    *,
    threads: int = 1,
    isolated: bool | None = None,
    trusted: Sequence[str | Path] = (),
    head: str | None = None,
) -> Model | IsolatedModel:
    """Open a converted model: in this process if it was made here or is signed by a trusted key, else in its own.

    Args:
        path: the model folder that `convert` made, or the model file inside it.
        threads: threads of the runtime.
        isolated: True runs any file in a process of its own, False none. A runtime that crashes on a damaged file then
            raises `WorkerDied`, where it would end this process otherwise.
        trusted: files of public keys; a target of a bundle that one of them signed is opened in this process.
        head: name of another head of the file, see `[heads.NAME]` of a recipe; None for the student's own.

    Raises:
        ArtifactError: the folder is no finished model artifact, was changed, or says of its file what is not so.
        InputError: there is nothing at that path, or a key cannot be read.
        SignatureRefused: the bundle is signed, and not by a trusted key, or was changed since.
        ToolchainError: its runtime is absent, too old, or cannot run here.
        WorkerDied: the runtime crashed or hung on a file in a process of its own.
    """
    # A link that leads elsewhere by the time the file is opened leads nowhere new.
    folder = model_folder(Path(path), head).resolve()
    if isolated:
        return IsolatedModel(folder, threads=threads)
    found = artifact.load(signature.root(folder))
    if isolated is None and not (origin.is_own(found) or _is_signed(found, trusted)):
        return IsolatedModel(folder, threads=threads)
    return open_checked(folder, threads=threads)


def _is_signed(model: Artifact, trusted: Sequence[str | Path]) -> bool:
    """Return whether a trusted key signed the bundle in which a model folder lies, and the folder as it is.

    Raises:
        SignatureRefused: another key did, or something was changed since.
    """
    keys = [signing.read_public_key(Path(key)) for key in trusted]
    bundle = model.path.parent
    if not keys or not (bundle / signing.SIGNATURE).exists():
        return False
    signed = signing.verify(bundle, keys, ignored=signing.BESIDE_BUNDLE).files
    names = (artifact.MANIFEST, *(entry.path for entry in model.manifest.files))
    return all(f"{model.path.name}/{name}" in signed for name in names)


def _end(worker: Worker, log: Path) -> None:
    worker.close()
    log.unlink(missing_ok=True)


_model: Model | None = None
"""In a worker process: the open model."""


def _open(folder: Path, threads: int) -> None:
    global _model
    # A file that asks for all of the memory ends this process, not the one that asked for it.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # The parent has checked the hashes; what reads a file of anybody's belongs in here.
    _model = open_checked(folder, threads=threads)


def _predict(rows: Sequence[tuple[str, str | None]], prompt: str | None) -> list[Prediction]:
    assert _model is not None
    return _model.predict([first if second is None else (first, second) for first, second in rows], prompt=prompt)


def _zero_shot(text: str, labels: Sequence[str], template: str, *, multi_label: bool) -> LabelScores:
    assert _model is not None
    return _model.zero_shot(text, labels, template, multi_label=multi_label)
