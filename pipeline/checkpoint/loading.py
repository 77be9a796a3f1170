"""Checkpoints in torch: load one into a task's class, and wrap it into the graph that is exported."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from pipeline import architectures, heads
from pipeline.checkpoint import shapes, smoothquant
from pipeline.checkpoint.source import Source
from pipeline.checkpoint.weights import BUFFERS
from pipeline.errors import StudentError
from pipeline.heads import sentence
from pipeline.tasks import Task

MASKED = -1e4
"""Added to a padded position's score. Finite in fp16, where `finfo.min` becomes -inf and (1 - mask) * -inf is NaN."""


HEADS = (
    *("pooler", "classifier", "pre_classifier", "score", "qa_outputs"),
    *("cls", "predictions", "seq_relationship", "sop_classifier", "lm_head"),
    *("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    *("discriminator_predictions", "generator_predictions", "generator_lm_head"),
    *("fit_dense", "fit_denses"),
    sentence.NAME,
)
"""First path components of tensors outside the encoder: heads of every class, and TinyBERT's distillation layers."""


def load_checkpoint(checkpoint: Path | Source, task: Task) -> Any:
    """Load a checkpoint in fp32 with eager attention into the class of a task; a `Source` without its weights.

    Raises:
        StudentError: weights are of the wrong shape, not finite, or missing, such as a head that was never trained.
    """
    import transformers

    quieten()
    auto = getattr(transformers, task.auto_class)
    config = shapes.read_config(checkpoint)
    row = architectures.get(config.model_type)
    options = {} if task.uses_head else dict(row.backbone_options)
    try:
        model, info = shapes.from_pretrained(
            auto,
            checkpoint,
            config,
            # Fused attention exports into slower graphs on ExecuTorch, 29 against 43 ms for MiniLM at 128 tokens.
            attn_implementation="eager",
            dtype=torch.float32,
            # Told below, with both shapes; transformers sends its reader to a report on the terminal.
            ignore_mismatched_sizes=True,
            **options,
        )
    except (RuntimeError, ValueError, OSError) as error:
        raise StudentError(
            f"{shapes.name_of(checkpoint)} does not load as {task.auto_class}: {str(error).strip().splitlines()[0]}"
        ) from error
    for tensor, stored, needed in sorted(info["mismatched_keys"]):
        raise StudentError(
            f"{shapes.name_of(checkpoint)}: {tensor} has shape {tuple(stored)}, and config.json asks for "
            f"{tuple(needed)}. Was the config edited, or does it belong to another checkpoint?"
        )
    missing = sorted(info["missing_keys"])
    if missing:
        name = checkpoint.origin if isinstance(checkpoint, Source) else "the checkpoint"
        raise StudentError(
            f"{name} lacks {len(missing)} tensors that task {task.name} needs, {missing[0]} first: "
            f"it was saved as {(config.architectures or ['?'])[0]}. Choose another task, or fine-tune it first."
        )
    _check_left_over(model, info.get("unexpected_keys", ()), shapes.name_of(checkpoint))
    _check_class(config, task, shapes.name_of(checkpoint))
    if isinstance(checkpoint, Path):
        stored = smoothquant.read(checkpoint)
        if stored is not None:
            smoothquant.insert(model, *stored)
        if not is_finite(model):
            raise StudentError(f"{checkpoint} holds NaN or infinite weights.")
    return model.eval()


def _check_left_over(model: Any, names: Iterable[str], checkpoint: str) -> None:
    """Refuse a checkpoint with tensors that the class would leave out, such as layers that config.json forgets."""
    prefix = f"{model.base_model_prefix}."
    lost = sorted(
        name
        for name in names
        if name.removeprefix(prefix).split(".")[0] not in HEADS and name.split(".")[-1] not in BUFFERS
    )
    if lost:
        raise StudentError(
            f"{checkpoint} holds {len(lost)} tensors that {type(model).__name__} has no place for, {lost[0]} first: "
            "without them it would be another model. Does config.json count its layers right, and name its class?"
        )


def _check_class(config: Any, task: Task, checkpoint: str) -> None:
    """Refuse a head of another task whose tensors happen to have the same names, such as `classifier.weight`."""
    saved = str((config.architectures or [""])[0])
    if task.uses_head and "For" in saved and not saved.endswith(task.head_suffix):
        raise StudentError(
            f"{checkpoint} was saved as {saved}, and task {task.name} needs a head of ...{task.head_suffix}. "
            "Choose the task that the checkpoint was trained for, or fine-tune it first."
        )


def quieten() -> None:
    """Silence the messages and progress bars of transformers while it loads a checkpoint."""
    import transformers

    # torchao 0.18, which transformers imports, registers two enums in a way of which torch 2.13 warns at each start.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def is_finite(model: Any) -> bool:
    """Return whether no weight of a model is NaN or infinite."""
    return all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


class ExportGraph(torch.nn.Module):
    """A Hugging Face model with int32 inputs, its attention mask and the task's output computed in the graph.

    Hugging Face's own mask code does not export to Core ML, and its `finfo.min` overflows in fp16; it passes a 4-D
    additive mask through as it is.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        *,
        index_dtype: torch.dtype = torch.int32,
        score_bias: torch.Tensor | None = None,
    ) -> None:
        """Wrap a model.

        Args:
            model: with its architecture's patches.
            task: whose outputs the graph gives.
            index_dtype: to which the graph casts the ids.
            score_bias: see `Architecture.score_bias`.
        """
        super().__init__()
        self.model = model
        self.task = task
        self.head = heads.of(task, model)
        self.index_dtype = index_dtype
        self._pools_prompt = task.uses_head or sentence.settings(model).pooling.include_prompt
        self._row = architectures.get(model.config.model_type)
        self.score_bias: torch.Tensor | None
        self.register_buffer("score_bias", score_bias)

    def compute(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the task's output, or its outputs in the order of their names, for `(batch, seq_len)` inputs."""
        mask = attention_mask.to(torch.float32)
        ids = input_ids.to(self.index_dtype)
        inputs = {"input_ids": ids}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids.to(self.index_dtype)
        attended = mask if self._pools_prompt else mask.clamp(max=1.0)
        if self._row.graph_inputs is not None:
            seen = (attention_mask if self._pools_prompt else attended).to(self.index_dtype)
            inputs |= self._row.graph_inputs(ids, seen, int(self.model.config.pad_token_id))
        scores = (1.0 - attended)[:, None, None, :] * MASKED  # (batch, 1, 1, seq_len)
        if self.score_bias is not None:
            length = ids.shape[1]
            scores = scores + self.score_bias[:, :, :length, :length]  # (batch, heads, seq_len, seq_len)
        output = self.model(**inputs, attention_mask=scores)
        results = self.head.outputs(output, mask)
        return results[0] if len(results) == 1 else results


class TwoInputs(ExportGraph):
    """For architectures without token types. The argument names become the file's input names."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the task's output, see `ExportGraph.compute`."""
        return self.compute(input_ids, attention_mask, None)


class ThreeInputs(ExportGraph):
    """For architectures with token types. The argument names become the file's input names."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Return the task's output, see `ExportGraph.compute`."""
        return self.compute(input_ids, attention_mask, token_type_ids)


def export_graph(
    folder: Path, task: Task, *, longest: int | None = None, index_dtype: torch.dtype = torch.int32
) -> ExportGraph:
    """Load a student, apply its architecture's patches, and wrap it for export.

    Args:
        folder: the checkpoint.
        task: whose outputs the graph gives.
        longest: the longest row that the graph will take; the checkpoint's own limit unless given.
        index_dtype: to which the graph casts the ids.
    """
    model = load_checkpoint(folder, task)
    row = architectures.get(model.config.model_type)
    score_bias = None
    if row.score_bias:
        # One more: to slice a whole constant is to take it as it is, and torch.export refuses what holds of one length.
        score_bias = row.score_bias(model, 1 + (longest or row.max_length(model.config.to_dict())))
    for patch in row.patches:
        patch(model)
    wrapper = ThreeInputs if "token_type_ids" in row.inputs else TwoInputs
    return wrapper(model, task, index_dtype=index_dtype, score_bias=score_bias).eval()


class BiasAfter(torch.nn.Module):
    """A linear without bias, and the addition of that bias: the same result from two operations."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        """Take the bias out of `linear`."""
        super().__init__()
        self.bias = linear.bias
        self.linear = linear
        linear.register_parameter("bias", None)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `linear(hidden) + bias`."""
        result: torch.Tensor = self.linear(hidden) + self.bias
        return result


class _Named(torch.nn.Module):
    """A graph that returns a dict of its outputs, for exporters that read the names from it."""

    def __init__(self, graph: ExportGraph) -> None:
        super().__init__()
        self.wrapped = graph

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the outputs by name."""
        output = self.wrapped(**inputs)
        results = output if isinstance(output, tuple) else (output,)
        return dict(zip(self.wrapped.task.output_names, results, strict=True))


def named_outputs(graph: ExportGraph) -> torch.nn.Module:
    """Wrap a graph so that it returns a dict by output name."""
    return _Named(graph).eval()


def input_names(folder: Path) -> tuple[str, ...]:
    """Return the names of a student's inputs in graph order."""
    return architectures.get(shapes.read_config(folder).model_type).inputs


def example_inputs(names: tuple[str, ...], length: int) -> tuple[torch.Tensor, ...]:
    """Return distinct int32 sample tensors `(1, length)`.

    `torch.export` merges samples that are one object; the graph then reads the mask as ids, without any error.
    """
    ids = torch.arange(1, length + 1, dtype=torch.int32)[None] % 100 + 1
    samples = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    return tuple(samples[name].clone() for name in names)
