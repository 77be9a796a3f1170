"""The student with its head: kept where the checkpoint has one, new and drawn from the seed where it has none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from pipeline.checkpoint import architectures, shapes
from pipeline.errors import StudentError
from pipeline.text import tokenizers
from pipeline.train.job import Job


@dataclass(frozen=True)
class Wanted:
    """Which class a checkpoint is loaded into, and with which head."""

    folder: Path
    auto_class: str
    """Name of one of transformers' auto classes."""
    keeps_head: bool
    seed: int
    """Of what is new."""
    labels: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the config that are set."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class, see `Architecture.backbone_options`."""


def load(job: Job) -> tuple[Any, list[str]]:
    """Load a checkpoint in fp32 into the class of its task.

    Returns:
        The model, and the names of the tensors that are new.

    Raises:
        StudentError: it does not load, it holds NaN, or more than a head is missing.
    """
    problems = {"logits": "single_label_classification", "value": "regression"}
    config: dict[str, Any] = {"problem_type": problems.get(job.task.output_kind)}
    if not job.labels and job.task.most_labels is not None:
        config["num_labels"] = job.task.most_labels
    seed = job.settings.seed
    return load_as(Wanted(job.source, job.task.auto_class, job.keeps_head, seed, job.labels, config))


def load_as(wanted: Wanted) -> tuple[Any, list[str]]:
    """Load a checkpoint in fp32 into a class; see `load`."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    auto = getattr(transformers, wanted.auto_class)
    config = _config(wanted)
    torch.manual_seed(wanted.seed)
    try:
        model, info = shapes.from_pretrained(
            auto,
            wanted.folder,
            config,
            dtype=torch.float32,
            # A head that is thrown away has other shapes than the new one.
            ignore_mismatched_sizes=not wanted.keeps_head,
            **wanted.options,
        )
    except Exception as error:  # transformers has a class of its own for each kind of nonsense in a config
        reason = " ".join(str(error).split())[:300]
        raise StudentError(f"{wanted.folder} does not load as {wanted.auto_class}: {reason}") from error
    backbone = shapes.encoder_prefix(model)
    new = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    every = dict(model.named_parameters(remove_duplicate=False))
    of_head = {name for name in every if not name.startswith(backbone)}
    if not wanted.keeps_head:
        new |= of_head
    # XLM-R's tied table of words is met first as the head's, and is the encoder's all the same.
    own = {id(parameter) for parameter in model.base_model.parameters()}
    new -= {name for name in of_head if id(every[name]) in own}
    _check(wanted, model, new, backbone)
    _draw(model, auto, new, wanted)
    architectures.zero_padding_by_hook(model)
    return model, sorted(new)


def _config(wanted: Wanted) -> Any:
    """Return the checkpoint's config with the labels and the kind of problem."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(wanted.folder, trust_remote_code=False)
    if wanted.labels:
        config.id2label = dict(enumerate(wanted.labels))
        config.label2id = {name: number for number, name in enumerate(wanted.labels)}
    for key, value in wanted.config.items():
        setattr(config, key, value)
    return config


def _check(wanted: Wanted, model: Any, new: set[str], backbone: str) -> None:
    # A pooler belongs to the head: a checkpoint that pools the mean was often saved without one.
    lost = sorted(name for name in new if name.startswith(backbone) and ".pooler." not in name)
    if lost:
        lacks = f"{wanted.folder} lacks {len(lost)} tensors of its encoder, {lost[0]} first"
        raise StudentError(f"{lacks}; a head can be new, an encoder not.")
    if wanted.keeps_head and new:
        raise StudentError(f"{wanted.folder} lacks {min(new)} of its head; train.new_head = true begins a new one.")
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise StudentError(f"{wanted.folder} holds NaN or infinite weights.")


def _draw(model: Any, auto: Any, new: set[str], wanted: Wanted) -> None:
    """Fill the new tensors as transformers draws them for a model without a checkpoint."""
    if not new:
        return
    torch.manual_seed(wanted.seed)
    fresh = auto.from_config(model.config, **wanted.options).state_dict()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in new:
                tensor.copy_(fresh[name])


def save(model: Any, source: Path, out: Path) -> None:
    """Write a trained model in the layout of the checkpoint that it began with, plain or compressed."""
    if shapes.compressed(source) is None:
        model.save_pretrained(out, safe_serialization=True, max_shard_size="10GB")
    else:
        shapes.save(model, out)


def write(model: Any, source: Path, out: Path, *, record: BaseModel, name: str) -> None:
    """Write a trained model with the tokenizer of the checkpoint that it began with, and its record under a name."""
    save(model, source, out)
    tokenizers.copy(source, out)
    (out / name).write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")


def set_dropout(model: Any, probability: float) -> None:
    """Give every dropout of a model one probability; its configuration, and so what is saved, stays as it is."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = probability


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's groups: biases and norms, which are vectors, do not decay.

    Source: google-research/bert, optimization.py, `exclude_from_weight_decay`.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
