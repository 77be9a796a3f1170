"""The prune stage: write a pruned checkpoint. Torch is imported only by `make` and `trial`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.artifact import digest_of
from pipeline.checkpoint.source import Source
from pipeline.compress.common import (
    SOURCE,
    Context,
    Stage,
    Work,
    calibrated_params,
    calibration_texts,
    refuse_lost_zeros,
)
from pipeline.data import calibration, corpus
from pipeline.data.corpus import Unlabelled
from pipeline.data.datasets import sample
from pipeline.data.retrieval import judged_texts
from pipeline.devices import host
from pipeline.errors import RecipeError
from pipeline.execution.node import versions
from pipeline.formats import litert
from pipeline.recipe.compression import STRUCTURE, PruneSection
from pipeline.tasks import Task
from pipeline.text import tokenizers

VERSION = 2
LATENCY_VERSION = 2
"""Version of the latency measurement; part of the key if costs are latencies."""
REFINE_VERSION = 1
"""Version of the refinement; part of the key if there is one."""
_UPDATES = 1000
"""For half of MiniLM 16 minutes of processor time; the vectors still come nearer after them, slowly."""
_LEAST_TEXTS = 1000
"""Fewer are not worth the minutes."""
_ALL = 10**9
_PLAIN = ("wikitext2", "war-and-peace")
"""Plain text that embeddings are refined on where a recipe names none, if the data folder has it."""
_SECONDS_EACH = 0.6
"""Seconds of an update for half of MiniLM on two cores, estimated from the .9 that it takes of processor time."""
DISTRIBUTIONS = ("torch", "transformers", "tokenizers")
"""Packages whose versions decide the weights."""


def make(source: Path, task_name: str, section: PruneSection, texts: Sequence[Unlabelled], out: Path) -> dict[str, Any]:
    """Prune a checkpoint and write the smaller one. Runs in a worker, since it imports torch.

    Args:
        source: folder in Hugging Face layout.
        task_name: a row of `tasks.py`.
        section: `[prune]` of the recipe; embeddings are refined if it says so.
        texts: the calibration set, without labels; a sample of `calibration_texts` is taken, and refined on all.
        out: the artifact's directory.

    Returns:
        Parameters and encoder MACs before and after, the sizes of each layer, the error behind each layer, and how near
        embeddings are to the whole student's.

    Raises:
        RecipeError: the section does not fit the checkpoint.
        StudentError: the checkpoint does not load, or its layers cannot be taken apart.
        InputError: too few texts.
    """
    from pipeline import architectures
    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.prune.checks import check_layers
    from pipeline.compress.prune.pruning import prune_structures
    from pipeline.train.model import save

    task = tasks.get(task_name)
    full = load_checkpoint(source, task)
    if not section.cuts:
        check_layers(full)
        metrics = _zero_weights(full, section)
        save(full, source, out)
        tokenizers.copy(source, out)
        return metrics
    chosen = sample(texts, section.calibration_texts, seed=section.seed)
    padding = int(full.config.pad_token_id or 0)
    inputs = architectures.get(full.config.model_type).inputs
    batches = calibration.batches(source, inputs, chosen, max_length=section.max_length, pad=padding)
    pruned, metrics = prune_structures(full, task, section, batches)
    if section.refine:
        from pipeline.compress.prune.refinement import refine

        metrics["refined"] = refine(full, pruned, source, texts, section)
    metrics |= _zero_weights(pruned, section)
    shapes.save(pruned, out)
    tokenizers.copy(source, out)
    return metrics


def _zero_weights(model: Any, section: PruneSection) -> dict[str, Any]:
    """Set single weights to zero, in place, if the recipe has `[prune.sparse]`; return the sparsity metrics."""
    from pipeline.train.sparsity import prune_by_magnitude, sparsity_metrics

    if section.sparse is None:
        return {}
    prune_by_magnitude(model, section.sparse)
    return {"parameters": sum(one.numel() for one in model.parameters())} | sparsity_metrics(model)


def trial(section: PruneSection, source: Source, task: Task) -> Source:
    """Return the expected checkpoint of `make`, from a trial on torch's meta device; raises the errors of `make`.

    Choices that need weights are replaced by neutral ones, see `pruning.WeightlessChoices`.
    """
    from pipeline.checkpoint import shapes
    from pipeline.checkpoint.loading import load_checkpoint
    from pipeline.compress.prune.checks import check_layers
    from pipeline.compress.prune.pruning import WeightlessChoices, remove_structures
    from pipeline.train.model import outline

    full = load_checkpoint(source, task)
    if not section.cuts:
        check_layers(full)
        return outline(full, source)
    pruned = remove_structures(full, section, WeightlessChoices())
    return shapes.outline(pruned.model, source, compressed=True)


# --- in a recipe -----------------------------------------------------------------------------------------------------


def _section(context: Context) -> PruneSection:
    assert context.recipe.prune
    return context.recipe.prune


def check_section(section: PruneSection) -> None:
    """Refuse a section without any pruning, or with keys that contradict each other, independent of the checkpoint.

    Raises:
        RecipeError: the section is empty or contradicts itself.
    """
    given = {name for name in (*STRUCTURE, "sparse") if getattr(section, name)}
    if not given:
        raise RecipeError(f"[prune] asks for nothing; give {', '.join(STRUCTURE)} or sparse.")
    if section.sparse is not None and section.sparse.by == "movement":
        raise RecipeError(
            "prune.sparse.by = 'movement' follows what a loss does to the weights, and [prune] has no loss. Give "
            "[train] or [distil] the table instead: [train.sparse] or [distil.sparse], with the same keys."
        )
    if "compute" in given and given & {"attention_heads", "intermediate_size"}:
        raise RecipeError(
            "[prune] has compute, which decides on attention_heads and intermediate_size itself; give it alone, or "
            "these two alone."
        )
    if section.costs == "latency" and section.hidden_size is not None:
        raise RecipeError(
            "prune.costs = 'latency' times the layers as they are, before prune.hidden_size makes them narrower; "
            "leave one of them out."
        )


def _check(context: Context, source: Source) -> None:
    section, start = _section(context), context.recipe.start
    check_section(section)
    if section.cuts:
        refuse_lost_zeros(context, "prune")
    if start and start.kind == "shared" and section.layers is not None:
        raise RecipeError(
            "start.kind = 'shared' ties all layers, and prune.layers cannot take some of one. Name those that stay in "
            "start.teacher_layers."
        )
    _check_refined(context)
    calibration_texts(context, "prune", section)


def _check_refined(context: Context) -> None:
    """Refuse updates that are asked for where there is nothing that they could bring back."""
    section, task = _section(context), context.recipe.task
    if section.refine_precision != "no" and (section.refine == 0 or tasks.get(task).output_kind != "embedding"):
        raise RecipeError("prune.refine_precision is that of the updates of prune.refine, and there are none.")
    if not section.refine:
        return
    if tasks.get(task).output_kind != "embedding":
        raise RecipeError(f"prune.refine is for embeddings, and the task is {task}. Use [distil].")
    if section.hidden_size is not None:
        raise RecipeError(
            "prune.hidden_size makes embeddings narrower, so that prune.refine cannot bring them near the unpruned "
            "student's. Leave one of them out, or use [distil] with space = 'teacher'."
        )
    if not section.cuts:
        raise RecipeError("prune.refine brings back what is lost by a smaller student, and none of [prune] makes one.")


def _refined(context: Context) -> PruneSection:
    """Return the section with the number of updates that it means."""
    section = _section(context)
    if section.refine is not None:
        return section
    fits = tasks.get(context.recipe.task).output_kind == "embedding" and section.hidden_size is None
    due = fits and section.cuts and section.reconstruct and context.recipe.distil is None
    # Of few texts it learns those: 140 updates on the package's own gave 1.3 points of recall, and took STS-B's .13.
    due = due and len(_texts_to_refine(context, section)) >= _LEAST_TEXTS
    return section.model_copy(update={"refine": _UPDATES if due else 0})


def _work(context: Context) -> Work:
    section = _refined(context)
    params = calibrated_params(context, "prune", section)
    texts = calibration_texts(context, "prune", section)
    for key in ("refine", "refine_precision"):
        del params["settings"][key]
    if section.refine:
        texts = _texts_to_refine(context, section)
        # Left out where it is the default, so that artifacts made before the key was there stay.
        precision = () if section.refine_precision == "no" else (section.refine_precision,)
        params["refine"] = [REFINE_VERSION, section.refine, digest_of(texts), *precision]
    if section.costs == "latency" and section.compute is not None:
        # Milliseconds are this machine's and this runtime's.
        here = host.describe()
        params["latency"] = [LATENCY_VERSION, here.model_id, here.cpu_features, versions(*litert.DISTRIBUTIONS)]
    arguments = (SOURCE, context.recipe.task, section, texts)
    seconds = 90 + _SECONDS_EACH * (section.refine or 0)
    distributions = (*DISTRIBUTIONS, "accelerate") if section.refine else DISTRIBUTIONS
    return Work(VERSION, params, distributions, make, arguments, seconds, trains=bool(section.refine))


def _texts_to_refine(context: Context, section: PruneSection) -> list[Unlabelled]:
    """Return all texts of the calibration set's sources, in order, and plain text beside the default ones.

    They are read once.
    """
    if "prune.refine" not in context.texts:
        key = "prune.calibration"
        sampled = calibration_texts(context, "prune", section)
        if section.calibration is not None and len(sampled) < section.calibration_texts:
            found = sampled
        else:
            found = calibration.texts(section.calibration, context.recipe_file, _ALL, seed=section.seed, key=key)
        if section.calibration is None:
            plain = [name for name in _PLAIN if corpus.absent_plain(name) is None]
            found = [*found, *(corpus.texts(plain, context.recipe_file, key) if plain else ())]
        judged = judged_texts(context.recipe.verify.retrieval, context.recipe_file)
        context.texts["prune.refine"] = calibration.unseen(found, judged)
    return context.texts["prune.refine"]


PRUNE = Stage(
    "prune",
    folder="pruned",
    origin="pruned",
    check=_check,
    work=_work,
    trial=lambda context, source: trial(_section(context), source, tasks.get(context.recipe.task)),
)
