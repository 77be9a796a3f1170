"""A gate of the student: its outputs are those of sentence-transformers on the same folder.

A wrong pooling, prompt or activation gives vectors that look like any others, so nobody notices. The library that users
know is the truth; what is compared with it is the reference that every file is judged by.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.checkpoint import sentences
from pipeline.checkpoint.files import read_json
from pipeline.errors import StudentError
from pipeline.heads.sentence import SentenceHead
from pipeline.student import golden
from pipeline.tasks import Task

_TOLERANCE = 2e-4
"""Largest difference of an output, of the root mean square of its row: two orders of sums in single precision differ by
2e-6, and another pooling, prompt or activation by more than .05."""


def check(
    folder: Path,
    rows: golden.Golden,
    task: Task,
    head: SentenceHead,
    *,
    width: int | None = None,
    prompts: Mapping[str, str] | None = None,
) -> None:
    """Compare the golden rows of a student with what sentence-transformers computes for their texts.

    A folder that says nothing for sentence-transformers is not compared, nor is one that was made smaller here: the
    library knows no layers of unequal shapes, and the checkpoint is another one by then.

    Args:
        folder: the checkpoint's folder.
        rows: the student's golden rows.
        task: embedding, or a task of one text or pair with labels or a value.
        head: the student's.
        width: to how many numbers embeddings are cut; None for all.
        prompts: those that a recipe names in place of the folder's; None for the folder's.

    Raises:
        StudentError: the library does not load the folder, or gives other outputs; the message names the text.
    """
    from pipeline.checkpoint import shapes  # it imports torch, which a plan does without

    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if shapes.KEY in config:
        return
    if task.output_kind == "embedding" and sentences.has_modules(folder):
        theirs = _embeddings(folder, rows, head, width, prompts)
    elif task.output_kind == "value" and "sentence_transformers" in config:
        theirs = _scores(folder, rows)
    else:
        return
    for row, found in theirs:
        mine = np.array(row.output)
        size = float(np.sqrt(np.mean(np.square(found)))) or 1.0
        # Written so that NaN does not pass.
        if mine.shape != found.shape or not float(np.abs(mine - found).max()) <= _TOLERANCE * max(size, 1e-3):
            shape = f"{found.size} numbers" if mine.shape != found.shape else f"another {task.output_kind}"
            behind = f" behind the prompt {row.prompt!r}" if row.prompt else ""
            raise StudentError(
                f"sentence-transformers gives {shape} for {row.first[:40]!r}{behind} than {folder} gives here: first "
                f"{found.ravel()[:3].round(4).tolist()}, here {mine.ravel()[:3].round(4).tolist()}. Something in the "
                "folder is read in another way; please report it."
            )


def _embeddings(
    folder: Path, rows: golden.Golden, head: SentenceHead, width: int | None, prompts: Mapping[str, str] | None
) -> "list[tuple[golden.GoldenRow, Any]]":
    library = _library(folder, rows.max_length)
    library.prompts = library.prompts if prompts is None else dict(prompts)
    # The library cuts behind scaling to unit length, and can scale once more.
    options = {} if width is None else {"truncate_dim": width, "normalize_embeddings": head.normalizes}
    single = [row for row in rows.rows if row.second is None]
    found = []
    for name in dict.fromkeys(row.prompt for row in single):
        texts = [row for row in single if row.prompt == name]
        # An empty prompt is none; None would be the default one.
        how = {"prompt": ""} if name is None else {"prompt_name": name}
        vectors = library.encode([row.first for row in texts], show_progress_bar=False, **how, **options)
        found += list(zip(texts, np.asarray(vectors, np.float64), strict=True))
    return found


def _library(folder: Path, max_length: int) -> Any:
    """Return the library's model of a folder, truncating texts to a length."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    if (folder / sentences.MODULES).is_file() or sentences.table_folder(folder) is None:
        library = _loaded(SentenceTransformer, folder)
    else:
        # model2vec's folder names no modules; its config says whether vectors are scaled.
        library = SentenceTransformer(modules=[StaticEmbedding.load(str(folder)), *_behind(folder)], device="cpu")
    if isinstance(library[0], StaticEmbedding):
        library[0].tokenizer.enable_truncation(max_length)
    else:
        library.max_seq_length = max_length
    return library


def _behind(folder: Path) -> list[Any]:
    from sentence_transformers.base.modules.normalize import Normalize

    return [Normalize()] if read_json(folder / "config.json").get("normalize") is True else []


def _scores(folder: Path, rows: golden.Golden) -> "list[tuple[golden.GoldenRow, Any]]":
    """Return the library's scores of pairs, before its activation."""
    import torch
    from sentence_transformers import CrossEncoder

    library = _loaded(CrossEncoder, folder)
    library.max_length = rows.max_length
    pairs = [row for row in rows.rows if row.second is not None]
    scores = library.predict(
        [(row.first, row.second) for row in pairs], activation_fn=torch.nn.Identity(), show_progress_bar=False
    )
    return list(zip(pairs, np.asarray(scores, np.float64).reshape(len(pairs), -1), strict=True))


def _loaded(kind: Any, folder: Path) -> Any:
    try:
        return kind(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the library raises many classes
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise StudentError(
            f"sentence-transformers does not load {folder}, with which it is compared: {reason}"
        ) from error
