"""Run a converted file: signature, tokenizer, length, post-processing; for predict, verify and benchmark."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from pipeline import artifact, formats, tasks
from pipeline.convert import opening, zero_shot
from pipeline.errors import InputError, no_file
from pipeline.formats import Evaluator, signature
from pipeline.formats.signature import Function, Signature
from pipeline.metrics import measures
from pipeline.metrics.outputs import Entity, Offsets, Span, best_span, entities, first_tokens, overlap, word_spans
from pipeline.text.encoding import Encoder, Row

UNPROMPTED = "embedded without a prompt, and the model has"
"""Begins a sentence that goes on with the prompts' names."""
_SHOWN_MODELS = 8
_EMPTY = "the text is empty; give at least one character that is not white space."
_ENCODED_AT_ONCE = 32


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for one text or pair."""

    text: str
    second: str | None
    tokens: int
    """Tokens of the row after truncation, special ones included; of the longest window."""
    length: int
    """The length at which the file ran."""
    vector: NDArray[np.float32]
    """The embedding, the logits or the numbers; `(tokens, width)` for tasks with outputs per token (first window)."""
    scores: Mapping[str, float] | None = None
    """Probability of each label, for classification of the text; each by itself where a text may have several."""
    given: tuple[str, ...] | None = None
    """The labels whose probability reaches their threshold, best first, where a text may have several; None elsewhere.
    """
    entities: tuple[Entity, ...] | None = None
    """Tagged parts of the text, for token classification."""
    answer: Span | None = None
    """The part of `second` that answers `text`."""
    windows: int = 1
    """How many windows over a long passage were run."""
    truncated: bool = False
    """Whether the text was cut to the file's longest sequence length."""
    value: float | None = None
    """The number of a regression, behind its activation, such as a reranker's score."""
    values: Mapping[str, float] | None = None
    """The numbers of a regression with several, by name."""
    unprompted: tuple[str, ...] = ()
    """Names of the model's prompts, if it has some and the text was embedded without one."""


class LabelScores(dict[str, float]):
    """The probability of each label of one's own for a text, the most probable first."""

    tokens: int = 0
    """Tokens of the longest row after truncation: the text beside a label's sentence."""
    truncated: bool = False
    """Whether the text was cut to the file's longest sequence length."""


class Model:
    """A converted file with its tokenizer and its signature; a context manager that frees the runtime's memory."""

    def __init__(self, folder: Path, *, threads: int = 1, evaluator: Evaluator | None = None) -> None:
        """Open the file of a model folder; `pipeline.load` also checks that nothing in it was changed.

        Args:
            folder: the model folder, or that of another head in it.
            threads: threads of the runtime.
            evaluator: what runs the file, if not the backend's first choice on this machine.
        """
        self.folder = folder
        self.signature: Signature = signature.read(folder)
        # Heads share the file and its tokenizer.
        root = signature.root(folder)
        self.encoder = Encoder.from_folder(root, self.signature.max_length)
        file = root / self.signature.file
        if evaluator:
            self._session = evaluator.load(file, self.signature, threads)
        else:
            self._session = formats.get(self.signature.backend).load(file, self.signature, threads=threads)

    def run(self, row: Row, *, length: int | None = None) -> NDArray[np.float32]:
        """Return the raw output of one row: `(width,)`, or `(tokens, width)` for outputs per token.

        Args:
            row: what `encoder.encode` returned.
            length: run at this length instead of the smallest that fits.

        Raises:
            InputError: the file has no function of that length.
        """
        if length is None:
            function, length = self.signature.choose(len(row))
        else:
            function = self._at(length)
        inputs = row.padded(self._names(function), length, pad_token_id=self.signature.pad_token_id)
        output = self.run_padded(function, inputs)
        return output[: len(row)] if output.ndim == 2 else output

    def run_all_padding(self, length: int) -> NDArray[np.float32]:
        """Return the raw output of a row that is all padding, with every token's if the task has outputs per token."""
        function = self._at(length)
        inputs = Row((), ()).padded(self._names(function), length, pad_token_id=self.signature.pad_token_id)
        return self.run_padded(function, inputs)

    def run_padded(self, function: Function, inputs: Mapping[str, NDArray[np.int32]]) -> NDArray[np.float32]:
        """Return the output of inputs that are padded already, each `(1, length)`: `(width,)` or `(length, width)`.

        Several outputs, such as the logits of starts and ends, come side by side.
        """
        outputs = self._session.run(function, inputs)
        named = [outputs[name][0] for name in tasks.get(self.signature.task).output_names]
        return named[0] if len(named) == 1 else np.stack(named, axis=-1)

    def _at(self, length: int) -> Function:
        function = self.signature.at_length(length)
        if function is None:
            lengths = ", ".join(str(function.max_length) for function in self.signature.functions)
            raise InputError(f"{self.signature.file} has no function of length {length}; lengths: {lengths}.")
        return function

    def _names(self, function: Function) -> tuple[str, ...]:
        return tuple(tensor.name for tensor in function.inputs)

    def predict(
        self, texts: str | Sequence[str | tuple[str, str]], second: str | None = None, *, prompt: str | None = None
    ) -> list[Prediction]:
        """Encode, run and post-process texts or pairs; those beyond the file's longest length are truncated.

        `predict(text)` and `predict(first, second)` take one text or one pair, and return a list of one.

        Args:
            texts: texts, or pairs of texts; or one text.
            second: the second text of a pair whose first is `texts`.
            prompt: name of one of `signature.prompts`, whose text is put before each text; None for the model's default
                prompt, an empty name for none.

        Raises:
            InputError: a text without any character, no text or pair at all, or the model has no such prompt.
        """
        rows = text_pairs(texts, second)
        warn_unprompted(self.signature, prompt)
        before = self.signature.wanted.text(prompt)
        return [self._predict(before, first, other) for first, other in rows]

    def zero_shot(
        self, text: str, labels: Sequence[str], template: str = zero_shot.TEMPLATE, *, multi_label: bool = False
    ) -> LabelScores:
        """Return the probability of labels of one's own, the most probable first; see `convert.zero_shot`.

        Raises:
            InputError: the text, the labels or the template are empty, or the model is none of inference.
        """
        pairs: list[Prediction] = []

        def logits_of(premise: str, hypothesis: str) -> NDArray[np.float32]:
            pairs.append(self._predict("", premise, hypothesis))
            return pairs[-1].vector

        found = LabelScores(
            zero_shot.scores(self.signature, logits_of, text, labels, template, multi_label=multi_label)
        )
        found.tokens = max(one.tokens for one in pairs)
        found.truncated = any(one.truncated for one in pairs)
        return found

    def _predict(self, prompt: str, first: str, second: str | None) -> Prediction:
        if not first.strip() or (second is not None and not second.strip()):
            raise InputError(_EMPTY)
        kind = self.signature.output_kind
        if kind == "spans":
            return self._answer(first, second)
        if kind == "embedding" and second is None:
            return self._embed(prompt, first)
        row, offsets = self.encoder.encode_with_offsets(first, second)
        _, length = self.signature.choose(len(row))
        vector = self.run(row)
        found = Prediction(first, second, len(row), length, vector, truncated=self._truncated(row, first, second))
        if kind == "value":
            number = float(vector[0])
            sigmoid = self.signature.activation == "sigmoid"
            return replace(found, value=float(measures.sigmoid(vector)[0]) if sigmoid else number)
        if kind == "values":
            return replace(found, values=self._named(vector))
        if kind == "multi_label":
            return self._several_labels(found)
        if kind == "logits":
            return replace(found, scores=self._named(measures.softmax(vector)))
        return replace(found, entities=self._entities(first, vector, offsets)) if kind == "token_logits" else found

    def embed(
        self, texts: Sequence[str], *, prompt: str | None = None, told: Callable[[int], None] = lambda _: None
    ) -> tuple[NDArray[np.float32], int]:
        """Return the embeddings of many texts, `(texts, width)`, as `predict` does, and how many were truncated.

        Texts are encoded some at a time, beside the runtime.

        Args:
            texts: at least one.
            prompt: as in `predict`.
            told: is told how many are embedded.

        Raises:
            InputError: no text, one without any character, or the model has no such prompt or gives no embeddings.
        """
        if isinstance(texts, str) or not texts or self.signature.output_kind != "embedding":
            raise InputError(
                f"embed takes a list of texts and a model of embeddings; {self.folder} got {texts!r:.100}."
            )
        before = self.signature.wanted.text(prompt)
        if not all(text.strip() for text in texts):
            raise InputError(_EMPTY)
        parts = [texts[at : at + _ENCODED_AT_ONCE] for at in range(0, len(texts), _ENCODED_AT_ONCE)]
        vectors, truncated = [], 0
        encode = partial(self.encoder.encode_all, before, pooled=self.signature.include_prompt)
        with ThreadPoolExecutor(1) as beside:
            ahead = beside.submit(encode, parts[0])
            for number, part in enumerate(parts, 1):
                rows = ahead.result()
                if number < len(parts):
                    ahead = beside.submit(encode, parts[number])
                vectors += [self.run(row) for row in rows]
                pairs = zip(rows, part, strict=True)
                truncated += sum(self._truncated(row, before + text, None) for row, text in pairs)
                told(len(vectors))
        return np.stack(vectors), truncated

    def _embed(self, prompt: str, text: str) -> Prediction:
        row = self.encoder.encode_prompted(prompt, text, pooled=self.signature.include_prompt)
        _, length = self.signature.choose(len(row))
        cut = self._truncated(row, prompt + text, None)
        names = () if prompt else tuple(self.signature.prompts)
        return Prediction(text, None, len(row), length, self.run(row), truncated=cut, unprompted=names)

    def _truncated(self, row: Row, first: str, second: str | None) -> bool:
        """Return whether a row was truncated; only a row of the full length has to be encoded again to tell."""
        return len(row) == self.encoder.max_length and self.encoder.truncates(first, second)

    def _several_labels(self, found: Prediction) -> Prediction:
        scores = self._named(measures.sigmoid(found.vector))
        margins = self._named(measures.label_margins(found.vector, self.signature.thresholds))
        given = sorted((label for label, margin in margins.items() if margin >= 0), key=lambda label: -scores[label])
        return replace(found, scores=scores, given=tuple(given))

    def _named(self, numbers: NDArray[np.floating]) -> dict[str, float]:
        return {label: float(number) for label, number in zip(self.signature.labels or (), numbers, strict=True)}

    def _entities(self, text: str, logits: NDArray[np.float32], offsets: Offsets) -> tuple[Entity, ...]:
        """Tag each word by its first token; words beyond the truncation get no tag."""
        labels = self.signature.labels or ()
        shares = measures.softmax(logits)
        places = word_spans(text)
        firsts = first_tokens(places, offsets)
        known = [(token, place) for token, place in zip(firsts, places, strict=True) if token is not None]
        best = [int(shares[token].argmax()) for token, _ in known]
        scores = [float(shares[token].max()) for token, _ in known]
        return tuple(entities(text, [labels[number] for number in best], scores, [place for _, place in known]))

    def _answer(self, question: str, passage: str | None) -> Prediction:
        """Look for the answer in every window over the passage."""
        if passage is None:
            raise InputError("a question needs a passage to be answered from; give it as the second text (--pair).")
        windows = self.encoder.windows(question, passage, stride=overlap(self.encoder.max_length))
        outputs = [self.run(window.row) for window in windows]
        span = best_span([(out, window.offsets) for out, window in zip(outputs, windows, strict=True)])
        tokens = max(len(window.row) for window in windows)
        _, length = self.signature.choose(tokens)
        return Prediction(question, passage, tokens, length, outputs[0], answer=span, windows=len(windows))

    def close(self) -> None:
        """Free the runtime's memory."""
        self._session.close()

    def __enter__(self) -> Self:
        """Return the model itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Free the runtime's memory."""
        self.close()


def text_pairs(texts: str | Sequence[str | tuple[str, str]], second: str | None) -> list[tuple[str, str | None]]:
    """Return what `predict` was given as pairs; a single text's second is None.

    Raises:
        InputError: it is neither texts nor pairs.
    """
    if isinstance(texts, str):
        return [(texts, second)]
    if second is not None:
        raise InputError(
            "predict(first, second) takes one pair of texts, and its first is a list; give several pairs as "
            "predict([(first, second), …]), and a prompt by its name: predict(texts, prompt='query')."
        )
    rows: list[tuple[str, str | None]] = []
    for one in texts:
        pair = (one, None) if isinstance(one, str) else tuple(one)
        if len(pair) != 2 or not isinstance(pair[0], str) or not isinstance(pair[1], str | None):
            raise InputError(f"predict takes texts, or pairs of texts, and got {one!r:.100}.")
        rows.append((pair[0], pair[1]))
    return rows


def warn_unprompted(signature: Signature, prompt: str | None) -> None:
    """Warn if texts are going to be embedded without a prompt by a model that has some; Python says it once a line.

    An empty name is a caller's choice and no reason for a warning.
    """
    if prompt is None and signature.prompts and signature.default_prompt is None:
        names = ", ".join(map(repr, signature.prompts))
        warnings.warn(f"{UNPROMPTED} {names}; pass one, or '' if none is meant", stacklevel=3)


def load(path: Path, *, threads: int = 1, head: str | None = None) -> Model:
    """Open a converted model in this process, after its hashes and its signature were checked; see `pipeline.load`."""
    folder = model_folder(path, head)
    artifact.load(signature.root(folder))
    return open_checked(folder, threads=threads)


def open_checked(folder: Path, *, threads: int) -> Model:
    """Open the folder of a model or a head, its hashes checked, after its signature was compared with its file."""
    opening.check(folder)
    return Model(folder, threads=threads)


def model_folder(path: Path, head: str | None = None) -> Path:
    """Return the folder of a model, or of a head in it, given the folder, its target's folder, or the file in it.

    Args:
        path: the folder or the file.
        head: name of another head of the file; None for the student's own, or where `path` is a head's folder.

    Raises:
        InputError: there is nothing that could be a model, or it has no such head.
    """
    # Those of `os.path` answer False for a name that no file system takes; those of `Path` raise.
    if not os.path.exists(path):
        raise InputError(f"{path} {no_file(path)}; {_models_near(path)}.")
    if path.name == signature.HEADS and os.path.isfile(path.parent / signature.SIGNATURE):
        heads = ", ".join(signature.head_folders(path.parent))
        raise InputError(f"{path} holds heads ({heads}); name one: {path.parent} with --head NAME, or {path}/NAME.")
    for folder in (path, path / "model", path.parent):
        if os.path.isfile(folder / signature.SIGNATURE):
            return folder if head is None else _head_folder(signature.root(folder), head)
    raise InputError(
        f"{path} is not a converted model: there is no {signature.SIGNATURE} beside it. Make one with `pocketbert run`."
    )


def models_in(folder: Path) -> Iterator[Path]:
    """Yield the model folders of the targets in a recipe's folder."""
    for place in sorted(folder.glob("*/model")):
        if os.path.isfile(place / signature.SIGNATURE):
            yield place


def _models_near(path: Path) -> str:
    """Say which models lie in the nearest folder above a path that leads nowhere."""
    above = next((one for one in path.parents if os.path.isdir(one)), Path())
    found = [one for one in (above, above / "model") if os.path.isfile(one / signature.SIGNATURE)]
    found += list(islice(models_in(above), _SHOWN_MODELS))
    if found:
        return f"there are: {', '.join(map(str, found))}"
    return f"`pocketbert run` makes models, each a folder with {signature.SIGNATURE}"


def _head_folder(model: Path, head: str) -> Path:
    folders = signature.head_folders(model)
    if head not in folders:
        exist = f"there are: {', '.join(folders)}" if folders else "it has none but the student's own"
        raise InputError(f"{model} has no head {head!r}; {exist}. A recipe names heads in [heads.NAME].")
    return folders[head]
