"""The student with its head: kept where the checkpoint has one, new and drawn from the seed where it has none."""

from typing import Any

import torch

from pipeline import shapes
from pipeline.errors import StudentError
from pipeline.training.job import Job


def load(job: Job) -> tuple[Any, list[str]]:
    """Load a checkpoint in fp32 into the class of its task.

    Returns:
        The model, and the names of the tensors that are new.

    Raises:
        StudentError: it does not load, it holds NaN, or more than a head is missing.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    auto = getattr(transformers, job.task.auto_class)
    config = _config(job)
    torch.manual_seed(job.settings.seed)
    try:
        model, info = shapes.from_pretrained(
            auto,
            job.source,
            config,
            dtype=torch.float32,
            # A head that is thrown away has other shapes than the new one.
            ignore_mismatched_sizes=not job.keeps_head,
        )
    except Exception as error:  # transformers has a class of its own for each kind of nonsense in a config
        reason = " ".join(str(error).split())[:300]
        raise StudentError(f"{job.source} does not load as {job.task.auto_class}: {reason}") from error
    backbone = f"{model.base_model_prefix}."
    new = {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}
    if not job.keeps_head:
        new |= {name for name, _ in model.named_parameters() if not name.startswith(backbone)}
    _check(job, model, new, backbone)
    _draw(model, auto, new, job.settings.seed)
    return model, sorted(new)


def _config(job: Job) -> Any:
    """Return the checkpoint's config with the labels and the kind of problem."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(job.source, trust_remote_code=False)
    if job.labels:
        config.id2label = dict(enumerate(job.labels))
        config.label2id = {name: number for number, name in enumerate(job.labels)}
    elif job.task.most_labels is not None:
        config.num_labels = job.task.most_labels
    problems = {"logits": "single_label_classification", "value": "regression"}
    config.problem_type = problems.get(job.task.output_kind)
    return config


def _check(job: Job, model: Any, new: set[str], backbone: str) -> None:
    # A pooler belongs to the head: a checkpoint that pools the mean was often saved without one.
    lost = sorted(name for name in new if name.startswith(backbone) and ".pooler." not in name)
    if lost:
        lacks = f"{job.source} lacks {len(lost)} tensors of its encoder, {lost[0]} first"
        raise StudentError(f"{lacks}; a head can be new, an encoder not.")
    if job.keeps_head and new:
        raise StudentError(f"{job.source} lacks {min(new)} of its head; train.new_head = true begins a new one.")
    if not all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()):
        raise StudentError(f"{job.source} holds NaN or infinite weights.")


def _draw(model: Any, auto: Any, new: set[str], seed: int) -> None:
    """Fill the new tensors as transformers draws them for a model without a checkpoint."""
    if not new:
        return
    torch.manual_seed(seed)
    fresh = auto.from_config(model.config).state_dict()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in new:
                tensor.copy_(fresh[name])


def decay_groups(model: Any, weight_decay: float) -> list[dict[str, Any]]:
    """Return AdamW's groups: biases and norms, which are vectors, do not decay.

    Source: google-research/bert, optimization.py, `exclude_from_weight_decay`.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.ndim > 1]
    vectors = [parameter for parameter in trained if parameter.ndim <= 1]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
