"""A student with its head, the checkpoint's own or a new one: loading, writing, parameter groups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from pipeline import architectures
from pipeline.checkpoint import shapes
from pipeline.checkpoint.loading import is_finite, quieten
from pipeline.checkpoint.source import Source
from pipeline.errors import StudentError
from pipeline.text import tokenizers
from pipeline.train.job import TrainingJob


@dataclass(frozen=True)
class LoadSpec:
    """The class that a checkpoint is loaded into, and its head."""

    checkpoint: Path | Source
    """A `Source` is loaded onto torch's meta device."""
    auto_class: str
    """Name of one of transformers' auto classes."""
    keeps_head: bool
    seed: int
    """Seed of new tensors."""
    labels: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the config to set."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class, see `Architecture.backbone_options`."""


def load_for_task(job: TrainingJob) -> tuple[Any, list[str]]:
    """Load a checkpoint in fp32 into the class of its task.

    Returns:
        The model, and the names of the tensors that are new.

    Raises:
        StudentError: it does not load, contains NaN, or lacks more than a head.
    """
    return load_model(headed(job, job.source))


def headed(job: TrainingJob, checkpoint: Path | Source) -> LoadSpec:
    """Return how a checkpoint is loaded into the class of a job's task."""
    config: dict[str, Any] = {"problem_type": job.task.problem_type}
    if not job.labels and job.task.most_labels is not None:
        config["num_labels"] = job.task.most_labels
    return LoadSpec(checkpoint, job.task.auto_class, job.keeps_head, job.settings.seed, job.labels, config)


def load_model(spec: LoadSpec) -> tuple[Any, list[str]]:
    """Load a checkpoint in fp32 into a class; see `load_for_task`."""
    import transformers

    quieten()
    auto = getattr(transformers, spec.auto_class)
    config = _config(spec)
    torch.manual_seed(spec.seed)
    try:
        model, info = shapes.from_pretrained(
            auto,
            spec.checkpoint,
            config,
            dtype=torch.float32,
            # A head that is replaced has other shapes than the new one.
            ignore_mismatched_sizes=not spec.keeps_head,
            **spec.options,
        )
    except Exception as error:  # transformers has a class of its own for each kind of fault in a config
        reason = " ".join(str(error).split())[:300]
        raise StudentError(f"{shapes.name_of(spec.checkpoint)} does not load as {spec.auto_class}: {reason}") from error
    backbone = shapes.encoder_prefix(model)
    new = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    every = dict(model.named_parameters(remove_duplicate=False))
    of_head = {name for name in every if not name.startswith(backbone)}
    if not spec.keeps_head:
        new |= of_head
    # XLM-R's tied embedding table is listed under the head first, and belongs to the encoder.
    encoder = {id(parameter) for parameter in model.base_model.parameters()}
    new -= {name for name in of_head if id(every[name]) in encoder}
    _check(spec, model, new, backbone)
    _draw(model, auto, new, spec)
    if patch := architectures.get(model.config.model_type).training_patch:
        patch(model)
    return model, sorted(new)


def _config(spec: LoadSpec) -> Any:
    """Return the checkpoint's config with the labels and the keys of the spec."""
    config = shapes.read_config(spec.checkpoint)
    if spec.labels:
        config.id2label = dict(enumerate(spec.labels))
        config.label2id = {name: number for number, name in enumerate(spec.labels)}
    for key, value in spec.config.items():
        setattr(config, key, value)
    return config


def _check(spec: LoadSpec, model: Any, new: set[str], backbone: str) -> None:
    # A pooler belongs to the head: checkpoints with mean pooling are often saved without one.
    name = shapes.name_of(spec.checkpoint)
    lost = sorted(name for name in new if name.startswith(backbone) and ".pooler." not in name)
    if lost:
        lacks = f"{name} lacks {len(lost)} tensors of its encoder, such as {lost[0]}"
        raise StudentError(f"{lacks}. Training can begin a new head, but not a new encoder.")
    if spec.keeps_head and new:
        raise StudentError(f"{name} lacks {min(new)} of its head. Set train.new_head = true to begin a new one.")
    if isinstance(spec.checkpoint, Path) and not is_finite(model):
        raise StudentError(f"{name} contains NaN or infinite weights.")


def _draw(model: Any, auto: Any, new: set[str], spec: LoadSpec) -> None:
    """Fill the new tensors as transformers draws them for a model without a checkpoint."""
    if not new or isinstance(spec.checkpoint, Source):
        return
    torch.manual_seed(spec.seed)
    fresh = auto.from_config(model.config, **spec.options).state_dict()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in new:
                tensor.copy_(fresh[name])


def save(model: Any, source: Path, out: Path) -> None:
    """Write a trained model in the layout of its source checkpoint, plain or compressed."""
    if shapes.compressed(source) is None:
        model.save_pretrained(out, safe_serialization=True, max_shard_size="10GB")
    else:
        shapes.save(model, out)


def outline(model: Any, source: Source) -> Source:
    """Return a checkpoint as `save` would leave it, of a model on torch's meta device."""
    return shapes.outline(model, source, compressed=shapes.compressed(source) is not None)


def save_with_record(model: Any, source: Path, out: Path, *, record: BaseModel, file_name: str) -> None:
    """Write a trained model with the tokenizer of its source checkpoint, and its record."""
    save(model, source, out)
    tokenizers.copy(source, out)
    (out / file_name).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")


def set_dropout(model: Any, probability: float) -> None:
    """Set the probability of every dropout of a model; the config, and so the saved checkpoint, is unchanged."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = probability


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's parameter groups: biases and norms, which are vectors, do not decay.

    Source: google-research/bert, optimization.py, `exclude_from_weight_decay`.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
