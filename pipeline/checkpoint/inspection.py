"""A summary of a checkpoint from its files, without torch: class, size, tokenizer, limits; and the hub's cache."""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pipeline.checkpoint import sentences
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.source import Source
from pipeline.checkpoint.weights import INTEGERS, WEIGHTS, weight_files
from pipeline.data.location import HUB_SECONDS, cache_folder, hub_errors
from pipeline.errors import StudentError
from pipeline.heads.sentence import NAME, SentenceHead
from pipeline.kinds import PoolingMode
from pipeline.tasks import Task

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PINNED = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})")


@dataclass(frozen=True)
class Summary:
    """A summary of a checkpoint, read from its files."""

    source: str
    """The name that a recipe gives it."""
    origin: str
    licence: str | None
    model_type: str
    class_name: str | None
    """First of `architectures` in config.json."""
    layers: int | None
    hidden_size: int | None
    parameters: int
    """In the file, heads included."""
    weights_bytes: int
    dtypes: list[str]
    tokenizer: str
    vocabulary: int | None
    """Tokens that the tokenizer knows."""
    rows: int | None
    """Rows of the table of words."""
    max_length: int
    """Tokens that the model takes, special ones included."""
    position_rows: int
    trained_length: int | None
    """The length to which sentence-transformers truncates texts."""
    numbers: int | None
    """Outputs of a head with labels; None for a bare encoder."""
    labels: list[str]
    problem_type: str | None
    sentence_transformers: bool
    has_head: bool
    """Whether the folder, or the checkpoint's config, says how its vectors are made."""
    head: str | None
    """The modules behind the encoder, in words."""
    head_file: str | None
    """The file that says how its vectors are made, relative to the folder."""
    normalizes: bool
    """Whether its vectors have unit length."""
    prompts: dict[str, str]
    """Texts that an embedding model wants before a text, by name."""
    default_prompt: str | None
    """The prompt of a text that comes without one."""
    unread: list[str]
    """Settings of its sentence-transformers files that nothing here carries out, as `key = value`."""

    @property
    def limit(self) -> int:
        """Tokens at which a text is cut: the encoder's limit, or an earlier one of sentence-transformers."""
        return min(self.max_length, self.trained_length or self.max_length)

    @property
    def is_bare(self) -> bool:
        """Whether the class is an encoder without a head, such as `BertModel`."""
        return self.class_name is not None and self.class_name.endswith("Model") and "For" not in self.class_name


def resolve(checkpoint: str, output: Path, tell: Callable[[str], None]) -> str:
    """Return the `student.source` of a recipe in `output` for a checkpoint that was named on the command line.

    Args:
        checkpoint: a folder, `bundled:NAME`, `hub:OWNER/NAME@COMMIT`, `hub:OWNER/NAME` for the newest commit, which
            the Hub is asked for, or `OWNER/NAME` from the local hub cache.
        output: the recipe's file, to whose folder a relative path is related.
        tell: called with the commit that the Hub named.

    Raises:
        StudentError: the Hub, or for a plain name the local cache, does not tell a commit.
    """
    plain = checkpoint.removeprefix("hub:")
    if plain != checkpoint and _HUB_NAME.fullmatch(plain):
        commit = _newest_commit(plain)
        tell(f"the newest commit of {plain} is {commit}; the recipe names it, so it stays the same model")
        return f"hub:{plain}@{commit}"
    if checkpoint.startswith(("bundled:", "hub:")):
        return checkpoint
    folder = Path(os.path.expanduser(checkpoint))
    if _HUB_NAME.fullmatch(checkpoint) and not folder.exists():
        return f"hub:{checkpoint}@{_cached_commit(checkpoint)}"
    if checkpoint.startswith("~") or folder.is_absolute():
        return checkpoint
    return os.path.relpath(folder.resolve(), output.parent.resolve())


def _cached_commit(repository: str) -> str:
    """Return the commit of a repository's main branch in the local hub cache, or the only one there."""
    folder = cache_folder(repository)
    main = folder / "refs" / "main"
    commits = sorted(path.parent.name for path in folder.glob("snapshots/*/config.json"))
    commit = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    if commit in commits:
        return commit
    if len(commits) == 1 and _COMMIT.fullmatch(commits[0]):
        return commits[0]
    if commits:
        raise StudentError(
            f"the local hub cache has {len(commits)} commits of {repository}; choose one: "
            f"{', '.join(f'hub:{repository}@{one}' for one in commits[:4])}."
        )
    raise StudentError(
        f"{repository} is neither a folder nor in the local hub cache, and a name alone is not downloaded: its branch "
        f"can move. Say hub:{repository} to ask the Hub for its newest commit, or hub:{repository}@<40-digit commit>."
    )


def _newest_commit(repository: str) -> str:
    """Ask the Hub for the commit to which a repository's main branch points now."""
    from huggingface_hub import HfApi

    with hub_errors(repository, StudentError, "or name a local folder"):
        commit = HfApi().model_info(repository, timeout=HUB_SECONDS).sha
    if commit is None or not _COMMIT.fullmatch(commit):
        raise StudentError(f"the Hub names no commit of {repository}. Say hub:{repository}@<40-digit commit>.")
    return commit


def find_cached(source: str) -> str | None:
    """Return the folder of a pinned hub source in the local hub cache, without any request; None if it is not there."""
    match = _PINNED.fullmatch(source)
    if match is None:
        return None
    folder = cache_folder(match.group(1)) / "snapshots" / match.group(2)
    return (
        str(folder)
        if (folder / "config.json").is_file()
        and any((folder / name).is_file() for name in (WEIGHTS, f"{WEIGHTS}.index.json"))
        else None
    )


def summarise(source: Source, named: str) -> Summary:
    """Summarise the files of a checked checkpoint.

    Args:
        source: from `checkpoint.source.find`.
        named: the recipe's name for it.
    """
    config, head = source.config, _head(source)
    classes = config.get("architectures")
    class_name = str(classes[0]) if isinstance(classes, list) and classes else None
    labels = source.labels if class_name is None or "For" in class_name else []
    parameters, dtypes = _header(source.folder)
    kind, vocabulary = _tokenizer(sentences.table_folder(source.folder) or source.folder)
    pinned = _PINNED.fullmatch(named)
    return Summary(
        source=named,
        origin=f"{pinned.group(1)}@{pinned.group(2)}" if pinned else source.origin,
        licence=source.licence,
        model_type=source.architecture.model_type,
        class_name=class_name,
        layers=_integer(config, "num_hidden_layers", "n_layers"),
        hidden_size=_integer(config, "hidden_size", "dim"),
        parameters=parameters,
        weights_bytes=source.weights_bytes,
        dtypes=dtypes,
        tokenizer=kind,
        vocabulary=vocabulary,
        rows=_integer(config, "vocab_size"),
        max_length=source.max_length,
        position_rows=int(config[source.architecture.keys.max_positions]),
        trained_length=head.max_seq_length if head else None,
        numbers=len(labels) if labels else None,
        labels=labels,
        problem_type=str(config["problem_type"]) if config.get("problem_type") else None,
        sentence_transformers=sentences.has_modules(source.folder),
        has_head=sentences.has_modules(source.folder) or NAME in config,
        head=head.chain if head else None,
        head_file=_head_file(source) if head else None,
        normalizes=head is not None and head.normalizes,
        prompts=head.prompts if head else {},
        default_prompt=head.default_prompt if head else None,
        unread=sentences.unread_settings(source.folder),
    )


def check_pooling(summary: Summary, task: Task, pooling: PoolingMode | None) -> None:
    """Ask for the pooling of a bare encoder, and refuse one beside a head that the folder describes.

    Args:
        summary: the checkpoint's summary.
        task: what it is used for.
        pooling: what `--pooling` gives, or None.

    Raises:
        StudentError: it is absent, or of no use.
    """
    bare = not task.uses_head and not summary.has_head
    if pooling is not None and not bare:
        raise StudentError(f"--pooling is for an encoder without a head; {summary.origin} has one. Leave it out.")
    if bare and pooling is None:
        raise StudentError(
            f"{summary.origin} is a bare encoder: it has no modules.json, which would say how the vectors of its "
            f"tokens become an embedding. Say it with --pooling: {', '.join(get_args(PoolingMode))}."
        )


def _integer(config: Mapping[str, Any], *keys: str) -> int | None:
    return next((value for key in keys if isinstance(value := config.get(key), int)), None)


def _header(folder: Path) -> tuple[int, list[str]]:
    """Return the number of parameters and their types, from the headers of a checkpoint's safetensors files."""
    from safetensors import safe_open

    total, dtypes = 0, set()
    for file in weight_files(folder):
        with safe_open(folder / file, framework="numpy") as handle:
            for key in handle.keys():  # noqa: SIM118 (not a dict)
                part = handle.get_slice(key)
                if part.get_dtype() not in INTEGERS:
                    total += math.prod(part.get_shape())
                    dtypes.add(str(part.get_dtype()))
    return total, sorted(dtypes)


def _tokenizer(folder: Path) -> tuple[str, int | None]:
    """Return the kind of tokenizer and how many tokens it knows."""
    path = folder / "tokenizer.json"
    if path.is_file():
        model = read_json(path).get("model")
        if isinstance(model, dict):
            vocabulary = model.get("vocab")
            return str(model.get("type") or "unnamed"), len(vocabulary) if vocabulary is not None else None
        raise StudentError(f"{path} has no table `model`; save the tokenizer again.")
    if (folder / "vocab.txt").is_file():
        return "WordPiece", len((folder / "vocab.txt").read_text(encoding="utf-8", errors="replace").splitlines())
    if (folder / "vocab.json").is_file():
        return "BPE", len(read_json(folder / "vocab.json"))
    return "SentencePiece", None


def _head_file(source: Source) -> str:
    """Return the file that says what the head is, relative to the folder."""
    if source.config.get(NAME) is not None:
        return "config.json"
    named = (sentences.MODULES, "1_Pooling/config.json")
    return next((name for name in named if (source.folder / name).is_file()), "config.json")


def _head(source: Source) -> SentenceHead | None:
    """Return the head that a folder, or its config, describes; None if neither does, or it cannot be read."""
    stored = source.config.get(NAME)
    if stored is None and not sentences.has_modules(source.folder):
        return None
    try:
        return sentences.settings_of(source.folder, stored)
    except StudentError:
        # Another task may have no need of it; for an embedding, the recipe's check tells what is wrong.
        return None
