"""The files of a checkpoint's weights: their names, their headers, and what is refused of them."""

import re
from pathlib import Path

from pipeline.checkpoint import sentences
from pipeline.checkpoint.files import read_json
from pipeline.errors import StudentError

WEIGHTS = "model.safetensors"
PALETTES = "palettes.safetensors"
"""The file that a palettised checkpoint has, see `checkpoint.palettes`."""
CODES = "integers.safetensors"
"""The file that a checkpoint has whose weights were rounded to few bits, see `checkpoint.integers`."""
GAINS = "gains.safetensors"
"""The file that a checkpoint has which `pipeline.quantize` rewrote, see `checkpoint.smoothquant`."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_ADAPTED = {
    "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification",
    "QUESTION_ANS": "QuestionAnswering",
}
"""The ends of peft's classes by `task_type`; an encoder without a head is the rest."""
INTEGERS = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")
"""Safetensors types of buffers, such as BERT's saved position numbers, which are no parameters."""
BUFFERS = ("position_ids", "token_type_ids")
"""Tensors that a checkpoint may hold beside its weights, by the end of their names."""


def header(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a folder's weights by name."""
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for name in weight_files(folder):
        with safe_open(folder / name, framework="numpy") as handle:
            shapes |= {tensor: tuple(handle.get_slice(tensor).get_shape()) for tensor in handle.keys()}  # noqa: SIM118
    return shapes


def weight_files(folder: Path) -> list[str]:
    """Return the names of the files that hold a checkpoint's weights: one, or the shards that an index lists.

    Raises:
        StudentError: the index cannot be read, or names something else than files beside it.
    """
    place = sentences.table_folder(folder)
    if place is not None:
        return [(place / WEIGHTS).relative_to(folder).as_posix()]
    index = folder / f"{WEIGHTS}.index.json"
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [WEIGHTS]
    listed = read_json(index).get("weight_map")
    names = sorted({str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    if not names or not all(re.fullmatch(r"[\w.-]+\.safetensors", name) for name in names):
        raise StudentError(f"{index} lists no safetensors files beside it in 'weight_map'. Copy the checkpoint again.")
    return names


def check_adapter(folder: Path) -> None:
    """Refuse an adapter, which changes what the weights beside it compute and would be left out."""
    path = folder / "adapter_config.json"
    if not path.is_file():
        return
    config = read_json(path)
    kind = _ADAPTED.get(str(config.get("task_type")), "FeatureExtraction")
    raise StudentError(
        f"{folder} has an adapter (adapter_config.json, for {str(config.get('base_model_name_or_path'))[:120]}), which "
        "is not read. Merge it into its model with the library peft, and name the folder 'merged' then: "
        f"peft.AutoPeftModelFor{kind}.from_pretrained({str(folder)!r}).merge_and_unload().save_pretrained('merged'); "
        f"transformers.AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained('merged')."
    )


def check_weights(folder: Path) -> None:
    """Refuse pickles and broken safetensors files by reading the headers only.

    Raises:
        StudentError: with the name of the file.
    """
    for name in weight_files(folder):
        check_weights_file(folder / name)


def _class_of(folder: Path) -> str:
    """Return the class that config.json names, or the general one for an encoder."""
    classes = read_json(folder / "config.json").get("architectures") if (folder / "config.json").is_file() else None
    named = str(classes[0]) if isinstance(classes, list) and classes else ""
    return named if re.fullmatch(r"[A-Z]\w{2,60}", named) else "AutoModel"


def check_weights_file(path: Path, whole_numbers: tuple[str, ...] = BUFFERS) -> None:
    """Refuse one file of weights that is absent, broken, or holds whole numbers beside buffers; see `check_weights`."""
    from safetensors import SafetensorError, safe_open

    folder = path.parent
    if path.name != WEIGHTS and not path.is_file():
        raise StudentError(f"{folder} has no {path.name}, which {WEIGHTS}.index.json lists. Copy the checkpoint again.")
    if not path.is_file():
        pickles = sorted(found.name for pattern in _PICKLES for found in folder.glob(pattern))
        if pickles:
            raise StudentError(
                f"{folder} has {pickles[0]} but no {WEIGHTS}. Pickles can run code and are not read. Where you trust "
                f"its origin, transformers writes {WEIGHTS} beside it: "
                f"transformers.{_class_of(folder)}.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})."
            )
        raise StudentError(f"{folder} has no {WEIGHTS}.")
    try:
        with safe_open(path, framework="numpy") as handle:
            names = handle.keys()
            if not names:
                raise StudentError(f"{path} holds no tensors.")
            types = {name: str(handle.get_slice(name).get_dtype()) for name in names}
    except (SafetensorError, OSError) as error:
        raise StudentError(f"{path} is corrupt or not safetensors: {error}. Copy it again.") from error
    whole = sorted(
        name for name, kind in types.items() if kind in INTEGERS and name.split(".")[-1] not in whole_numbers
    )
    if whole:
        raise StudentError(
            f"{path}: {whole[0]} is {types[whole[0]]}, whole numbers, and a weight has to be F32, F16, BF16 or F64. "
            "Save the student before it is quantised."
        )
