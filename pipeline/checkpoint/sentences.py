"""Folders of sentence-transformers: what their modules, prompts and settings say, as one `SentenceHead`.

Whatever changes a vector is read or refused by name, never passed over.

Source: sentence-transformers, from version 2 to 6; keys that later versions renamed are read under both names.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, get_args

from pipeline import architectures
from pipeline.artifact import check_size
from pipeline.checkpoint.files import read_json
from pipeline.errors import StudentError
from pipeline.heads.pooling import MODES, Pooling
from pipeline.heads.sentence import DEFAULT, NAME, SentenceHead
from pipeline.heads.steps import ACTIVATIONS, Dense, LayerNorm, Normalize, Step
from pipeline.kinds import PoolingMode
from pipeline.text.tokenizers import load_tokenizer
from pipeline.vectors.contract import Similarity

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER_CONFIGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of the settings of the module Transformer; the first that has any is read."""
WEIGHTS = "model.safetensors"
"""The tensors of a module, in its folder."""
_FLAGS: Mapping[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""What versions before 5.4 wrote, in the order in which the vectors are joined."""
_TOKENIZER = "tokenizer_config.json"
_TABLE = "StaticEmbedding"
"""The module that is a table of tokens and their mean, in place of Transformer and Pooling."""
_MODEL2VEC = "model2vec"
"""`model_type` of a table's config.json, where one is beside it."""
_VECTOR = "sentence_embedding"
_KNOWN_SETTINGS = ("__version__", "prompts", "default_prompt_name", "similarity_fn_name", "model_type")
_INERT = ("Dropout",)
"""Modules that do nothing outside training."""
_READ = ("Transformer", "Pooling", _TABLE, "Dense", "LayerNorm", "Normalize", *_INERT)


class _Module(NamedTuple):
    """A row of modules.json."""

    kind: str
    folder: Path


def has_modules(folder: Path) -> bool:
    """Return whether a folder says how its vectors are made."""
    named = (folder / MODULES).is_file() or (folder / "1_Pooling" / "config.json").is_file()
    return named or table_folder(folder) is not None


def table_folder(folder: Path) -> Path | None:
    """Return where a folder has the table of static embeddings with its tokenizer; None for an encoder's folder.

    Raises:
        StudentError: modules.json cannot be read, or leads out of the folder.
    """
    modules = _modules(folder)
    if modules:
        return modules[0].folder if modules[0].kind == _TABLE else None
    path = folder / "config.json"
    return folder if path.is_file() and read_json(path).get("model_type") == _MODEL2VEC else None


def unread_settings(folder: Path) -> list[str]:
    """Return the keys of config_sentence_transformers.json that nothing here carries out, as `key = value`."""
    path = folder / SETTINGS
    config = read_json(path) if path.is_file() else {}
    found = {key: value for key, value in config.items() if key not in _KNOWN_SETTINGS and value is not None}
    if config.get("similarity_fn_name") not in (None, *get_args(Similarity)):
        found["similarity_fn_name"] = config["similarity_fn_name"]
    return [f"{key} = {json.dumps(value)[:60]}" for key, value in found.items()]


def files(folder: Path) -> list[str]:
    """Return the files that decide the head of a folder, relative to it; those that are absent are left out.

    Raises:
        StudentError: modules.json cannot be read, or leads out of the folder.
    """
    names = [MODULES, SETTINGS, *TRANSFORMER_CONFIGS]
    inner = [module.folder for module in _modules(folder) if module.folder != folder] or [folder / "1_Pooling"]
    for one in inner:
        names += [(one / name).relative_to(folder).as_posix() for name in ("config.json", WEIGHTS)]
    return [name for name in names if (folder / name).is_file()]


def read(folder: Path) -> SentenceHead:
    """Return what a folder computes behind its encoder; the default where it says nothing.

    Raises:
        StudentError: the message names the file, and what it asks for that is not carried out.
    """
    modules = _modules(folder)
    _check_order(folder, modules)
    prompts, default = _prompts(folder / SETTINGS)
    if table_folder(folder) is not None:
        steps = [_STEPS[one.kind](one.folder) for one in modules if one.kind in _STEPS]
        if not modules and read_json(folder / "config.json").get("normalize") is True:
            steps = [Normalize()]
        return SentenceHead(
            steps=tuple(steps), prompts=prompts, default_prompt=default, similarity=_similarity(folder / SETTINGS)
        )
    transformer = _transformer(folder)
    pooling = [module.folder for module in modules if module.kind == "Pooling"]
    if not modules and (folder / "1_Pooling" / "config.json").is_file():
        pooling = [folder / "1_Pooling"]
    return SentenceHead(
        pooling=_pooling(folder, pooling[0]) if pooling else DEFAULT.pooling,
        steps=tuple(_STEPS[one.kind](one.folder) for one in modules if one.kind in _STEPS)
        if modules
        else DEFAULT.steps,
        prompts=prompts,
        default_prompt=default,
        max_seq_length=_max_seq_length(folder, transformer),
        lower_case=bool(transformer.get("do_lower_case")) and not _lowers(folder),
        similarity=_similarity(folder / SETTINGS),
    )


def _tensors(folder: Path, head: SentenceHead) -> dict[str, Any]:
    """Return the tensors of the modules of a folder; raises an error for weights that do not fit their config."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    found: dict[str, Any] = {}
    steps = [module for module in _modules(folder) if module.kind in _STEPS]
    # Without modules.json the head is the default one, which has no tensors.
    for number, (step, module) in enumerate(zip(head.steps if steps else (), steps, strict=True)):
        needed = {name: tuple(tensor.shape) for name, tensor in step.module().state_dict().items()}
        if not needed:
            continue
        path = module.folder / WEIGHTS
        if not path.is_file():
            pickled = (module.folder / "pytorch_model.bin").is_file()
            raise StudentError(
                f"{module.folder} has no {WEIGHTS}"
                + (
                    ", and its pytorch_model.bin is a pickle, which can run code and is not read. Load the model with "
                    "sentence-transformers 3 or newer and save it again."
                    if pickled
                    else f", and {step.kind} has weights. Copy the folder from where the checkpoint is from."
                )
            )
        try:
            stored = load_file(path)
        except (SafetensorError, OSError) as error:
            raise StudentError(f"{path} is corrupt or not safetensors: {error}. Copy it again.") from error
        shapes = {name: tuple(tensor.shape) for name, tensor in stored.items()}
        if shapes != needed:
            raise StudentError(
                f"{path} has the tensors {shapes}, and {module.folder.name}/config.json asks for {needed}."
            )
        found |= {f"{number}.{name}": tensor.float() for name, tensor in stored.items()}
    return found


def _modules(folder: Path) -> list[_Module]:
    """Return the rows of modules.json, in the order of computation; none without the file."""
    path = folder / MODULES
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


def _check_order(folder: Path, modules: list[_Module]) -> None:
    """Refuse modules that are unknown, come twice, or stand where the computation would be another one."""
    path, names = folder / MODULES, [module.kind for module in modules]
    chain = " → ".join(names)
    lost = [name for name in names if name not in _READ]
    if lost:
        raise StudentError(
            f"{path} names the module {lost[0]} ({chain}), which the embedding task does not carry out: it has "
            f"{', '.join(_READ)}. Without that module the vectors would be others."
        )
    twice = [name for name in ("Transformer", "Pooling", _TABLE) if names.count(name) > 1]
    if twice:
        raise StudentError(f"{path} names the module {twice[0]} twice ({chain}); the embedding task has it once.")
    first = [name for name in names if name not in _INERT][:2]
    alone = first[:1] == [_TABLE] and not {"Transformer", "Pooling"} & set(names)
    if modules and first != ["Transformer", "Pooling"] and not alone:
        raise StudentError(
            f"{path} has the modules {chain}; the first has to be the Transformer, and the second the Pooling that "
            f"makes one vector of its tokens', or {_TABLE} has to stand for both."
        )
    for module in modules:
        if module.kind == "Transformer" and module.folder != folder:
            raise StudentError(
                f"{path} has the Transformer in {module.folder.name}, and what is read is beside modules.json. Save "
                "the model again with a newer sentence-transformers, which puts the Transformer there."
            )


def _pooling(folder: Path, place: Path) -> Pooling:
    path = place / "config.json"
    # Without a folder of its own it would be the checkpoint's config.json, which says nothing of pooling.
    if place == folder or not path.is_file():
        raise StudentError(
            f"{path} is no Pooling's config, and modules.json has a Pooling there: which vectors of a row's tokens "
            "make the embedding is not known. Copy the file from where the checkpoint is from."
        )
    config = read_json(path)
    flags = [key for key in config if key.startswith("pooling_mode_")]
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    switched_on = [_FLAGS.get(key, key) for key in flags if config[key] is not False]
    switched_on.sort(key=lambda mode: list(_FLAGS.values()).index(mode) if mode in MODES else -1)
    if modes is None:
        modes = switched_on if flags else ["mean"]
    elif flags and isinstance(modes, list) and sorted(map(str, modes)) != sorted(switched_on):
        raise StudentError(
            f"{path} has pooling_mode {named!r} for newer releases of sentence-transformers, and for older ones "
            f"{', '.join(switched_on) or 'no pooling'}. Delete the keys that are not meant."
        )
    if not isinstance(modes, list) or not modes or not all(mode in MODES for mode in modes):
        asked = ", ".join(map(str, modes)) if isinstance(modes, list) else repr(modes)
        raise StudentError(f"{path} asks for pooling {asked[:200] or 'by no mode'}; there are: {', '.join(MODES)}.")
    return Pooling(modes=tuple(modes), include_prompt=config.get("include_prompt", True) is not False)


def _dense(folder: Path) -> Step:
    config = read_json(path := folder / "config.json")
    activation = str(config.get("activation_function") or "torch.nn.Identity")
    name = activation.rpartition(".")[2]
    if not activation.startswith("torch.nn.") or name not in ACTIVATIONS:
        raise StudentError(
            f"{path} has activation_function {activation[:120]!r}; there are, of torch.nn: "
            f"{', '.join(sorted(ACTIVATIONS))}."
        )
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _VECTOR):
            raise StudentError(
                f"{path} has {key} {config[key]!r}; a Dense here reads and writes {_VECTOR}, the vector of the text."
            )
    return Dense(
        in_features=_size(config, "in_features", path),
        out_features=_size(config, "out_features", path),
        bias=config.get("bias", True) is not False,
        activation=name,
        residual=config.get("use_residual", False) is True,
    )


def _layer_norm(folder: Path) -> Step:
    path = folder / "config.json"
    return LayerNorm(dimension=_size(read_json(path), "dimension", path))


def _size(config: Mapping[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise StudentError(f"{path} has {key} {value!r}; it has to be a whole number from 1 on.")
    return value


_STEPS: Mapping[str, Callable[[Path], Step]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Normalize": lambda folder: Normalize(),
}


def _prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """Return the prompts that are not empty, and the name of the default one."""
    if not path.is_file():
        return {}, None
    config = read_json(path)
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise StudentError(f"{path} has prompts {str(prompts)[:80]!r}; it has to be a table of texts by name.")
    if default is not None and default not in prompts:
        raise StudentError(
            f"{path} has default_prompt_name {str(default)[:80]!r}; there are: {', '.join(prompts) or 'no prompts'}."
        )
    # Version 5 and later write "query" and "document" with empty texts into every folder.
    kept = {str(name): text for name, text in prompts.items() if text}
    return kept, default if default in kept else None


def _similarity(path: Path) -> Similarity:
    """Return how near two vectors are; `unread_settings` names a measure that is none of ours."""
    named = read_json(path).get("similarity_fn_name") if path.is_file() else None
    return "dot" if named == "dot" else "cosine"


def _transformer(folder: Path) -> dict[str, Any]:
    """Return the settings of the module Transformer."""
    configs = (folder / name for name in TRANSFORMER_CONFIGS if (folder / name).is_file())
    return next((found for path in configs if (found := read_json(path))), {})


def _max_seq_length(folder: Path, transformer: Mapping[str, Any]) -> int | None:
    """Return the tokens at which texts are truncated if they are fewer than the encoder takes, else None.

    Version 6 writes them into the tokenizer's settings, as `model_max_length`.
    """
    length = transformer.get("max_seq_length")
    if length is None and (folder / _TOKENIZER).is_file():
        length = read_json(folder / _TOKENIZER).get("model_max_length")
    if length is None or isinstance(length, float):
        # A tokenizer without a limit has one of 1e30.
        return None
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise StudentError(f"{folder} has max_seq_length {length!r}; it has to be a whole number from 1 on.")
    config = read_json(folder / "config.json")
    limit = architectures.get(str(config.get("model_type"))).max_length(config)
    return length if length < limit else None


def _lowers(folder: Path) -> bool:
    normalizer = load_tokenizer(folder).normalizer
    return normalizer is not None and "A" not in normalizer.normalize_str("A")


def fold(folder: Path, out: Path, head: SentenceHead | None = None) -> None:
    """Write the head of a folder of sentence-transformers into a copy of its config.json and weights.

    So a checkpoint is one config and one file of tensors from here on; the default head leaves both unchanged.

    Args:
        folder: the folder that has the modules.
        out: has a copy of config.json and of the weights.
        head: the folder's head with what a recipe adds; None to read it.

    Raises:
        StudentError: the head cannot be read.
    """
    config = read_json(out / "config.json")
    stored = config.get(NAME)
    head = settings_of(folder, stored) if head is None else head
    if head == DEFAULT and stored is None:
        return
    from safetensors.torch import load_file, save_file

    tensors = {} if stored is not None else _tensors(folder, head)
    own = {f"{NAME}.{name}": tensor.contiguous() for name, tensor in tensors.items()}
    if own:
        save_file(load_file(out / WEIGHTS) | own, out / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(config | {NAME: head.model_dump(mode="json")}, indent=2, sort_keys=True)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")


def settings_of(folder: Path, stored: Mapping[str, Any] | None) -> SentenceHead:
    """Return the head of a folder of sentence-transformers, or of a checkpoint that was made here.

    Args:
        folder: the checkpoint; it is not read where its config has the head.
        stored: the head in its config.json, or None.
    """
    return read(folder) if stored is None else SentenceHead.model_validate(stored)


def of_checkpoint(folder: Path, config: Any) -> tuple[SentenceHead, dict[str, Any]]:
    """Return the head of a checkpoint, and its tensors in torch by name, such as `0.linear.weight`.

    Raises:
        StudentError: the head cannot be read.
    """
    from safetensors import safe_open

    stored = getattr(config, NAME, None)
    head = settings_of(folder, stored)
    if stored is None:
        return head, _tensors(folder, head)
    with safe_open(folder / WEIGHTS, "pt") as handle:
        names = [name for name in handle.keys() if name.startswith(f"{NAME}.")]  # noqa: SIM118
        return head, {name.removeprefix(f"{NAME}."): handle.get_tensor(name).float() for name in names}
