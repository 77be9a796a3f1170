"""Compressed checkpoints: saved so that transformers' own classes take the shapes that their tensors have.

A transformers config has one number of attention heads and one intermediate size for all layers. A pruned, factorised
or re-tied checkpoint differs by layer, so its config.json carries the key `pocketbert`, and its model is built from its
config and then reshaped:

- a linear, table or norm takes its tensor's shape; heads keep their size, and their number follows from the query's;
- `X.0.weight` and `X.1.weight` where the class has `X` are two linears, or a table and a linear, instead of one;
- modules that several layers share are stored once, and the config says which layer has them.

A folder is loaded with its weights. A `Source` is loaded onto torch's meta device: shapes from its config and the
header of its weights, and no numbers. So a plan tries compression before anything is made.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from pipeline import architectures
from pipeline.architectures import layers
from pipeline.checkpoint import sentences
from pipeline.checkpoint.source import Source
from pipeline.checkpoint.weights import WEIGHTS
from pipeline.errors import StudentError
from pipeline.heads import sentence

KEY = "pocketbert"
Info = dict[str, Any]
"""`missing_keys` and `mismatched_keys`, as transformers' `output_loading_info` has them."""


class Compressed(BaseModel):
    """The entry `pocketbert` in config.json, which describes a compressed checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    head_size: int
    """Width of one attention head; it no longer is hidden size / heads."""
    attention: tuple[int, ...] | None = None
    """For each layer, the layer whose attention it uses; None if each has its own."""
    feed_forward: tuple[int, ...] | None = None
    """The same for the feed-forward network."""


def compressed(checkpoint: Path | Source) -> Compressed | None:
    """Return the entry `pocketbert` of a checkpoint's config, or None for a plain checkpoint.

    Raises:
        StudentError: the entry is malformed, or of a version that is not supported here.
    """
    if isinstance(checkpoint, Source):
        entry = checkpoint.config.get(KEY)
    else:
        entry = json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get(KEY)
    if entry is None:
        return None
    try:
        return Compressed.model_validate(entry)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        folder = checkpoint.folder if isinstance(checkpoint, Source) else checkpoint
        raise StudentError(
            f"{folder}/config.json: {KEY!r} is malformed, or of a version that is not supported here: {reason}."
        ) from error


def name_of(checkpoint: Path | Source) -> str:
    """Return the name of a checkpoint in error messages: its origin, or its path."""
    return checkpoint.origin if isinstance(checkpoint, Source) else str(checkpoint)


def read_config(checkpoint: Path | Source) -> Any:
    """Return transformers' config of a checkpoint."""
    import transformers

    architectures.register_classes()
    if isinstance(checkpoint, Source):
        with _faults_named(checkpoint):
            return transformers.CONFIG_MAPPING[checkpoint.architecture.model_type].from_dict(dict(checkpoint.config))
    return transformers.AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)


def from_pretrained(auto: Any, checkpoint: Path | Source, config: Any, **options: Any) -> tuple[Any, Info]:
    """Load a checkpoint, plain or compressed, as `auto.from_pretrained(..., output_loading_info=True)` does.

    A bare encoder gets the head of its sentence-transformers folder, see `pipeline.heads.sentence`.

    Args:
        auto: one of transformers' auto classes.
        checkpoint: a folder with config.json and model.safetensors; or a `Source`, for a model on torch's meta device.
        config: of `read_config`, possibly edited.
        options: those of transformers; for a compressed checkpoint, those of the model's class.

    Raises:
        StudentError: the head, or a compressed checkpoint, cannot be read.
    """
    head, tensors = None, None
    if auto.__name__ == "AutoModel":
        folder = checkpoint.folder if isinstance(checkpoint, Source) else checkpoint
        if isinstance(checkpoint, Source):
            head = sentences.settings_of(folder, getattr(config, sentence.NAME, None))
        else:
            head, tensors = sentences.of_checkpoint(folder, config)
    config.__dict__.pop(sentence.NAME, None)
    model, info = _encoder(auto, checkpoint, config, options)
    if head is not None:
        sentence.attach(model, head, tensors)
    return model, info


def _encoder(auto: Any, checkpoint: Path | Source, config: Any, options: Mapping[str, Any]) -> tuple[Any, Info]:
    shape = compressed(checkpoint)
    if isinstance(checkpoint, Source):
        with _faults_named(checkpoint):
            return _on_meta(auto, checkpoint, config, shape, options)
    if shape is None:
        model, info = auto.from_pretrained(
            checkpoint,
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **options,
        )
        return model, info
    try:
        tensors = load_file(checkpoint / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise StudentError(f"{checkpoint / WEIGHTS} cannot be read: {error}.") from error
    return _restored(auto, tensors, config, shape, options, name_of(checkpoint))


@contextlib.contextmanager
def _faults_named(source: Source) -> Iterator[None]:
    """Turn any exception of transformers over an invalid config into a `StudentError`."""
    try:
        yield
    except StudentError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise StudentError(f"{source.origin} does not load: {reason}") from error


def _on_meta(
    auto: Any, source: Source, config: Any, shape: Compressed | None, options: Mapping[str, Any]
) -> tuple[Any, Info]:
    tensors = {name: torch.empty(size, device="meta") for name, size in source.tensor_shapes().items()}
    if shape is not None:
        with torch.device("meta"):
            return _restored(auto, tensors, config, shape, options, name_of(source))
    # An auto class takes no tensors instead of a folder; the class that it would choose does.
    model, info = auto._model_mapping[type(config)].from_pretrained(
        None, config=config, state_dict=tensors, device_map="meta", output_loading_info=True, **options
    )
    return model, info


def _restored(
    auto: Any,
    tensors: dict[str, torch.Tensor],
    config: Any,
    shape: Compressed,
    options: Mapping[str, Any],
    checkpoint: str,
) -> tuple[Any, Info]:
    options = dict(options)
    new_head = bool(options.pop("ignore_mismatched_sizes", False))
    model = _empty(auto, config, shape, options)
    tensors = _under_prefix(model, tensors)
    reshape(model, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, head_size=shape.head_size)
    # After reshaping: pairs are new modules, and a shared module has its stored shape at the first layer alone.
    _share(model, shape)
    count_heads(model, shape.head_size)
    parameters = named_once(model)
    stored = {name for name in parameters if name in tensors}
    _check_known(model, tensors, checkpoint)
    mismatched = [name for name in stored if parameters[name].shape != tensors[name].shape]
    if mismatched and not new_head:
        has, needs = tuple(tensors[mismatched[0]].shape), tuple(parameters[mismatched[0]].shape)
        raise StudentError(f"{checkpoint}: {mismatched[0]} has shape {has}, and the class needs {needs}.")
    with torch.no_grad():
        for name in stored - set(mismatched):
            parameters[name].copy_(tensors[name])
    missing = sorted(set(parameters) - stored)
    shapes = [(name, tensors[name].shape, parameters[name].shape) for name in mismatched]
    return model, {"missing_keys": missing, "mismatched_keys": shapes}


def encoder_prefix(model: Any) -> str:
    """Return the prefix of the encoder's parameter names, which is empty for the bare encoder."""
    return "" if model.base_model is model else f"{model.base_model_prefix}."


def named_once(model: Any) -> dict[str, Any]:
    """Return the parameters, each under the name by which it is stored.

    A module that several layers share goes by the name in the first of them. A table that a head is tied to goes by the
    encoder's name, though XLM-R's class has its head first.
    """
    prefix = encoder_prefix(model)
    every = list(model.named_parameters(remove_duplicate=False))
    names: dict[int, str] = {}
    for name, parameter in [*(one for one in every if one[0].startswith(prefix)), *every]:
        names.setdefault(id(parameter), name)
    return {name: parameter for name, parameter in every if names[id(parameter)] == name}


def _check_known(model: Any, tensors: Mapping[str, torch.Tensor], checkpoint: str) -> None:
    """Refuse a checkpoint whose encoder has tensors that the class lacks, since the model would compute something else.

    The head and the pooler may belong to another class; some classes have neither.
    """
    prefix = encoder_prefix(model)
    known = model.state_dict().keys()
    beside = (f"{prefix}pooler.", f"{sentence.NAME}.")
    encoder = [name for name in tensors if name.startswith(prefix) and not name.startswith(beside)]
    lost = [name for name in encoder if name not in known]
    if lost:
        raise StudentError(
            f"{checkpoint}: the class {type(model).__name__} has no place for {lost[0]}, which is stored."
        )


def _empty(auto: Any, config: Any, shape: Compressed, options: Mapping[str, Any]) -> Any:
    """Build the class with the config's shapes; transformers requires that the heads divide the hidden size."""
    heads = int(config.num_attention_heads)
    divides = int(config.hidden_size) % heads == 0
    if not divides:
        config.num_attention_heads = 1
    model = auto.from_config(config, **options)
    if not divides:
        config.num_attention_heads = heads
    for layer in layers.layers(model):
        owner = layer.get("heads")
        owner.attention_head_size = shape.head_size
        owner.scaling = shape.head_size**-0.5
    return model


def _under_prefix(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Name tensors as the model does: a head's class has its encoder under a prefix, the bare encoder has none."""
    prefix = f"{model.base_model_prefix}."
    bare = model.base_model is model
    saved_with_head = any(name.startswith(prefix) for name in tensors)
    if bare and saved_with_head:
        return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if not bare and not saved_with_head:
        return {prefix + name: tensor for name, tensor in tensors.items()}
    return tensors


def reshape(model: Any, shapes: Mapping[str, tuple[int, ...]], *, head_size: int) -> None:
    """Give a model's encoder the shapes of tensors by name; the task's head keeps the shapes of the config."""
    base = model.base_model
    prefix = encoder_prefix(model)
    for path, module in list(base.named_modules()):
        at = f"{prefix}{path}"
        if f"{at}.0.weight" in shapes and isinstance(module, nn.Linear | nn.Embedding):
            layers.put(base, path, _pair(module, shapes[f"{at}.0.weight"], shapes[f"{at}.1.weight"]))
        elif f"{at}.weight" in shapes:
            _resize(module, shapes[f"{at}.weight"])
    count_heads(model, head_size)


def count_heads(model: Any, head_size: int) -> None:
    """Set each layer's number of attention heads, which follows from the query's width."""
    for layer in layers.layers(model):
        owner = layer.get("heads")
        for name in ("num_attention_heads", "n_heads"):
            if hasattr(owner, name):
                setattr(owner, name, layer.heads)
        if hasattr(owner, "all_head_size"):
            owner.all_head_size = layer.heads * head_size


def _resize(module: nn.Module, shape: Sequence[int]) -> None:
    if isinstance(module, nn.Linear) and tuple(module.weight.shape) != tuple(shape):
        module.out_features, module.in_features = shape
        module.weight = nn.Parameter(torch.zeros(*shape))
        if module.bias is not None:
            module.bias = nn.Parameter(torch.zeros(shape[0]))
    elif isinstance(module, nn.Embedding) and tuple(module.weight.shape) != tuple(shape):
        module.num_embeddings, module.embedding_dim = shape
        module.weight = nn.Parameter(torch.zeros(*shape))
    elif isinstance(module, nn.LayerNorm) and module.normalized_shape != tuple(shape):
        module.normalized_shape = tuple(shape)
        module.weight, module.bias = nn.Parameter(torch.ones(*shape)), nn.Parameter(torch.zeros(*shape))


def _pair(module: nn.Linear | nn.Embedding, first: Sequence[int], second: Sequence[int]) -> nn.Sequential:
    """Return two uninitialised factors that replace one matrix."""
    if isinstance(module, nn.Embedding):
        table = nn.Embedding(first[0], first[1], padding_idx=module.padding_idx)
        return nn.Sequential(table, nn.Linear(second[1], second[0], bias=False))
    down = nn.Linear(first[1], first[0], bias=False)
    return nn.Sequential(down, nn.Linear(second[1], second[0], bias=module.bias is not None))


def _share(model: Any, shape: Compressed) -> None:
    every = layers.layers(model)
    for owners, part in ((shape.attention, "attention"), (shape.feed_forward, "feed_forward")):
        for number, owner in enumerate(owners or ()):
            if owner != number:
                use(every[number], every[owner], part)


def use(layer: layers.Layer, owner: layers.Layer, part: str) -> None:
    """Make a layer share the modules of another one's `attention` or `feed_forward`."""
    for path in getattr(layer.layout, part):
        layers.put(layer.module, path, owner.module.get_submodule(path))


def sharing(model: Any) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Return each layer's first layer with the same attention, and with the same feed-forward; None if all differ."""
    every = layers.layers(model)
    answers = []
    for part in ("query", "intermediate"):
        modules = [id(layer.get(part)) for layer in every]
        owners = tuple(modules.index(one) for one in modules)
        answers.append(None if len(set(owners)) == len(owners) else owners)
    return answers[0], answers[1]


def entry_of(model: Any) -> dict[str, Any]:
    """Return the config entries that a compressed model has in addition to a plain one's."""
    attention, feed_forward = sharing(model)
    (first, *_) = layers.layers(model)
    entry = Compressed(head_size=first.head_size, attention=attention, feed_forward=feed_forward)
    return {KEY: entry.model_dump(mode="json", exclude_none=True), "architectures": [type(model).__name__]}


def save(model: Any, folder: Path) -> None:
    """Write a compressed model: each tensor once, and the entry `pocketbert` in its config."""
    entry = entry_of(model)
    model.config.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | entry
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().contiguous() for name, tensor in named_once(model).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def outline(model: Any, source: Source, *, compressed: bool) -> Source:
    """Return a checkpoint as it would be if a model on torch's meta device were saved.

    Args:
        model: made of the checkpoint.
        source: the checkpoint; its tokenizer stays.
        compressed: whether `save` would write the model, and not transformers' own `save_pretrained`.

    Raises:
        StudentError: the head of an embedding does not fit the encoder any more.
    """
    if hasattr(model, sentence.NAME):
        sentence.settings(model).check(sentence.hidden_size(model.config))
    config = json.loads(model.config.to_json_string())
    config |= entry_of(model) if compressed else {"architectures": [type(model).__name__]}
    tensors = {name: tuple(tensor.shape) for name, tensor in named_once(model).items()}
    row = architectures.get(str(config["model_type"]))
    return replace(source, config=config, architecture=row, tensors=tensors)
