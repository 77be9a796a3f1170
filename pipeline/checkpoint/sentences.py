"""Settings of sentence-transformers beside a checkpoint, and the refusal of those that the embedding task ignores.

The task takes the mean over a text's tokens and scales it to unit length; it has no prompts and no other modules.

Source: the modules Transformer and Pooling of sentence-transformers 6.2, and their `load_config`.
"""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pipeline.artifact import check_size
from pipeline.checkpoint.files import read_json
from pipeline.errors import StudentError
from pipeline.text.tokenizers import load_tokenizer

TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the settings of the module Transformer; the first that has any is read."""
_MODULES = ("Transformer", "Pooling", "Normalize")
"""Classes that the embedding task carries out."""
_FLAG = "pooling_mode_"
_MEAN = "mean"
_FLAG_OF_MEAN = "pooling_mode_mean_tokens"


class _Module(NamedTuple):
    """A row of modules.json."""

    kind: str
    folder: Path


def check(folder: Path) -> None:
    """Refuse a checkpoint whose vectors are made otherwise than the embedding task makes them.

    Raises:
        StudentError: the message names the file and what it asks for.
    """
    modules = _modules(folder)
    _check_kinds(folder, modules)
    pooling = [module.folder / "config.json" for module in modules if module.kind == "Pooling"]
    if not modules and (folder / "1_Pooling" / "config.json").is_file():
        pooling = [folder / "1_Pooling" / "config.json"]
    for config in pooling:
        _check_pooling(folder, config)
    _check_prompt(folder / "config_sentence_transformers.json")
    _check_case(folder)


def _modules(folder: Path) -> list[_Module]:
    """Return the rows of modules.json, in the order of computation; none without the file."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        check_size(path)
        rows = json.loads(path.read_text(encoding="utf-8"))
        found = [(str(row["type"]).rpartition(".")[2], str(row.get("path", ""))) for row in rows]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StudentError(f"{path} is no list of modules, each with its type: {error}.") from error
    for kind, place in found:
        parts = PurePosixPath(place)
        if parts.is_absolute() or ".." in parts.parts or "\0" in place:
            raise StudentError(f"{path} says that {kind} lies in {place[:80]!r}; it has to be a folder beside it.")
    return [_Module(kind, folder / place) for kind, place in found]


def _check_kinds(folder: Path, modules: list[_Module]) -> None:
    """Refuse modules that are not carried out, that come twice, or whose weights are not the checkpoint's."""
    path, names = folder / "modules.json", [module.kind for module in modules]
    chain = " → ".join(names)
    lost = [name for name in names if name not in _MODULES]
    if lost:
        raise StudentError(
            f"{path} names the module {lost[0]} ({chain}), which the embedding task does not carry out: it has "
            f"{', '.join(_MODULES)}. Without that module the vectors would be others."
        )
    twice = [name for name in ("Transformer", "Pooling") if names.count(name) > 1]
    if twice:
        raise StudentError(f"{path} names the module {twice[0]} twice ({chain}); the embedding task has it once.")
    for module in modules:
        if module.kind == "Transformer" and module.folder != folder:
            raise StudentError(
                f"{path} has the Transformer in {module.folder.name}, and what is read is beside modules.json. Save "
                "the model again with a newer sentence-transformers, which puts the Transformer there."
            )


def _check_pooling(folder: Path, path: Path) -> None:
    # Without a folder of its own it would be the checkpoint's config.json, which says nothing of pooling.
    if path == folder / "config.json" or not path.is_file():
        raise StudentError(
            f"{path} is no Pooling's config, and modules.json has a Pooling there: whether it takes the mean over "
            "tokens, as the embedding task does, is not known. Copy the file from where the checkpoint is from."
        )
    config = read_json(path)
    modes = _other_modes(config)
    if modes:
        raise StudentError(f"{path} asks for {modes}; the embedding task pools the mean over tokens.")


def _other_modes(config: Mapping[str, Any]) -> str | None:
    """Return the pooling modes of a Pooling module's config if they are not the mean alone, else None.

    Newer releases write `pooling_mode`, one name or a list of names to join; older ones a flag per mode. If a config
    has both, newer releases read the former and older ones the latter, so both have to be the mean.
    """
    mode = config.get("pooling_mode", _MEAN)
    if mode not in (_MEAN, [_MEAN]):
        return f"pooling_mode {mode!r}"[:200]
    flags = [key for key in config if key.startswith(_FLAG)]
    switched_on = [key for key in flags if config[key] is not False]
    if flags and switched_on != [_FLAG_OF_MEAN]:
        return ", ".join(switched_on)[:200] or "no pooling"
    return None


def _check_prompt(path: Path) -> None:
    """Refuse a text that sentence-transformers puts before every other, whether pooled with it or not."""
    if not path.is_file():
        return
    config = read_json(path)
    name, prompts = config.get("default_prompt_name"), config.get("prompts")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    if prompt:
        raise StudentError(
            f"{path} puts the prompt {str(prompt)[:80]!r} (default_prompt_name {name!r}) before every text, and the "
            "embedding task puts none. Set default_prompt_name to null if your app writes the prompt itself."
        )


def _check_case(folder: Path) -> None:
    """Refuse `do_lower_case` beside a tokenizer that keeps capitals: sentence-transformers would lower them first."""
    configs = (folder / name for name in TRANSFORMER_CONFIGS if (folder / name).is_file())
    path, config = next(((path, found) for path in configs if (found := read_json(path))), (folder, {}))
    if config.get("do_lower_case") and not _lowers(folder):
        raise StudentError(
            f"{path} has do_lower_case {config['do_lower_case']!r}, and the tokenizer beside it keeps capitals. Save "
            "the tokenizer with a normalizer that lower-cases, or set do_lower_case to false."
        )


def _lowers(folder: Path) -> bool:
    normalizer = load_tokenizer(folder).normalizer
    return normalizer is not None and "A" not in normalizer.normalize_str("A")
