"""[start], [vocabulary], [prune], [factorise] and [share]: what each refuses, its work, and what it will leave."""

from pathlib import Path
from typing import Any

from pipeline import tasks
from pipeline.artifact import digest_of
from pipeline.backends import litert
from pipeline.checkpoint.source import Source
from pipeline.compress import factorise, prune, share, vocabulary
from pipeline.compress.stage import Context, Stage, Work
from pipeline.compress.start import checks
from pipeline.data import calibration
from pipeline.data.corpus import Unlabelled
from pipeline.devices import host
from pipeline.errors import RecipeError
from pipeline.graph.node import Input, versions
from pipeline.recipe.compression import FactoriseSection, PruneSection, StartSection, VocabularySection
from pipeline.train.checks import class_of, has_head

SOURCE = Input("source")
"""The checkpoint before a stage."""


def _check_start(context: Context, source: Source) -> None:
    assert context.recipe.start
    checks.check(context.recipe.start, source)


def _start(context: Context, source: Source) -> Work:
    section = context.recipe.start
    assert section
    params = {"settings": section.model_dump(mode="json")}
    return Work(checks.VERSION, params, ("torch", "transformers"), _make_start, (SOURCE, section), 10)


def _expected_start(context: Context, source: Source) -> Source:
    assert context.recipe.start
    return checks.expected(context.recipe.start, source)


def _make_start(source: Path, section: StartSection, out: Path) -> dict[str, Any]:
    from pipeline.compress.start import stage as starts  # torch

    return starts.make(source, section, out)


def _check_vocabulary(context: Context, source: Source) -> None:
    section = context.recipe.vocabulary
    assert section
    vocabulary.check(section, source, tasks.get(context.recipe.task), corpus_of(context, section))


def _vocabulary(context: Context, source: Source) -> Work:
    section = context.recipe.vocabulary
    assert section
    texts = corpus_of(context, section)
    corpus = vocabulary.digests(section, context.recipe_file)
    params = {"settings": section.model_dump(mode="json"), "corpus": corpus}
    arguments = (SOURCE, context.recipe.task, section, texts)
    return Work(vocabulary.VERSION, params, vocabulary.DISTRIBUTIONS, vocabulary.make, arguments, 30)


def _expected_vocabulary(context: Context, source: Source) -> Source:
    """Without a size, the tokens that the corpus needs are only known once it is tokenized."""
    assert context.recipe.vocabulary
    count = context.recipe.vocabulary.kept_size(source.vocab_size)
    return source if count is None else source.foretold(vocab_size=count)


def corpus_of(context: Context, section: VocabularySection) -> list[str]:
    """Return the corpus, which checks and the work share."""
    if "vocabulary" not in context.texts:
        context.texts["vocabulary"] = vocabulary.read(section, context.recipe_file)
    return context.texts["vocabulary"]


def _check_prune(context: Context, source: Source) -> None:
    assert context.recipe.prune
    _need_head(context, source, "prune")
    if context.recipe.prune.cuts:
        _keep_zeros(context, "prune")
    start = context.recipe.start
    if start and start.kind == "shared" and context.recipe.prune.layers is not None:
        raise RecipeError(
            "start.kind = 'shared' ties all layers, and prune.layers cannot take some of one. Name those that stay in "
            "start.teacher_layers."
        )
    prune.check(context.recipe.prune, source, tasks.get(context.recipe.task))
    _texts(context, "prune", context.recipe.prune)


def _prune(context: Context, source: Source) -> Work:
    section = context.recipe.prune
    assert section
    arguments, params = _calibrated(context, source, "prune", section)
    if section.costs == "latency" and section.compute is not None:
        # Milliseconds are this machine's and this runtime's.
        here = host.describe()
        params["latency"] = [prune.LATENCY_VERSION, here.model_id, here.cpu_features, versions(*litert.DISTRIBUTIONS)]
    return Work(prune.VERSION, params, prune.DISTRIBUTIONS, prune.make, arguments, 90)


def _expected_prune(context: Context, source: Source) -> Source:
    assert context.recipe.prune
    layers, hidden = context.recipe.prune.layers, context.recipe.prune.hidden_size
    if not context.recipe.prune.cuts:
        return _left_behind(context, source)
    if layers is not None:
        source = checks.with_layers(source, layers if isinstance(layers, int) else len(layers))
    if hidden is not None:
        source = checks.with_hidden_size(source, hidden)
    source = _left_behind(context, source)
    # From here on the config does not tell how many heads a layer has.
    return source.foretold(pocketbert=source.config.get("pocketbert") or {})


def _left_behind(context: Context, source: Source) -> Source:
    """Return a checkpoint as these stages leave it: with the head of the task, and no other."""
    return source if tasks.get(context.recipe.task).uses_head else checks.without_head(source)


def _check_factorise(context: Context, source: Source) -> None:
    assert context.recipe.factorise
    start = context.recipe.start
    if start and start.kind == "albert" and context.recipe.factorise.embedding is not None:
        raise RecipeError(
            "start.kind = 'albert' puts the embedding table into two factors already. Give start.embedding_size in the "
            "place of factorise.embedding."
        )
    _need_head(context, source, "factorise")
    if context.recipe.factorise.feed_forward is not None:
        _keep_zeros(context, "factorise")
    factorise.check(context.recipe.factorise, source, tasks.get(context.recipe.task))
    _texts(context, "factorise", context.recipe.factorise)


def _factorise(context: Context, source: Source) -> Work:
    section = context.recipe.factorise
    assert section
    arguments, params = _calibrated(context, source, "factorise", section)
    return Work(factorise.VERSION, params, factorise.DISTRIBUTIONS, factorise.make, arguments, 30)


def _texts(context: Context, name: str, section: PruneSection | FactoriseSection) -> list[Unlabelled]:
    """Return the calibration texts, which the check and the work share; none where none are looked at."""
    count, seed, asked = section.calibration_texts, section.seed, f"{name}.calibration"
    if not section.calibrated:
        if section.calibration:
            raise RecipeError(f"{asked} names texts, and [{name}] as it is set looks at none; leave it out.")
        return []
    if name not in context.texts:
        found = calibration.texts(section.calibration, context.recipe_file, count, seed=seed, key=asked)
        context.texts[name] = found
    return context.texts[name]


def _calibrated(
    context: Context, source: Source, name: str, section: PruneSection | FactoriseSection
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments and the params of a stage that looks at calibration texts."""
    texts, task = _texts(context, name, section), context.recipe.task
    settings = section.model_dump(mode="json", exclude={"calibration"})
    return (SOURCE, task, section, texts), {"task": task, "settings": settings, "texts": digest_of(texts)}


def _check_share(context: Context, source: Source) -> None:
    assert context.recipe.share
    if context.recipe.share.start == "average":
        _keep_zeros(context, "share")
    start, pruned = context.recipe.start, context.recipe.prune
    if start and start.kind in ("albert", "shared"):
        raise RecipeError(f"start.kind = {start.kind!r} ties all layers already; leave [share] out.")
    if pruned and pruned.counts and not pruned.uniform:
        raise RecipeError(
            "[prune] keeps heads and intermediate neurons wherever they matter, and layers of different shapes cannot "
            "be tied by [share]. Give prune.uniform = true, which keeps the same number in each layer."
        )
    factorised = context.recipe.factorise and context.recipe.factorise.feed_forward
    if factorised and factorised.rank is None and context.recipe.share.what != "attention":
        raise RecipeError(
            "[factorise] gives each feed-forward a rank of its own, and factors of different shapes cannot be tied by "
            "[share]. Give factorise.feed_forward one rank, which all layers get."
        )
    _need_head(context, source, "share")
    share.check(context.recipe.share, source, tasks.get(context.recipe.task))


def _share(context: Context, source: Source) -> Work:
    section = context.recipe.share
    assert section
    params = {"task": context.recipe.task, "settings": section.model_dump(mode="json")}
    arguments = (SOURCE, context.recipe.task, section)
    return Work(share.VERSION, params, share.DISTRIBUTIONS, share.make, arguments, 20)


def _keep_zeros(context: Context, section: str) -> None:
    """Refuse what would fill the zeros of an earlier section."""
    recipe = context.recipe
    made = [name for name, one in (("train", recipe.train), ("prune", recipe.prune)) if one and one.sparse]
    if made and made[0] != section:
        raise RecipeError(
            f"[{section}] gives the linears new numbers, and those that [{made[0]}.sparse] made zero would not stay "
            "zero. Leave one of them out; [distil.sparse] comes after all the others."
        )


def _need_head(context: Context, source: Source, section: str) -> None:
    """Refuse a checkpoint without the head that the stage works with."""
    task = tasks.get(context.recipe.task)
    if task.uses_head and not has_head(task, source):
        raise RecipeError(
            f"[{section}] takes a model with its head, and {source.origin} has none for task {task.name}: it is saved "
            f"as {class_of(source)}. Add [train], or a start that keeps the head, or do this in a recipe of "
            "task embedding."
        )


START = Stage("start", "started", "begun smaller", _check_start, _start, _expected_start)
VOCABULARY = Stage(
    "vocabulary", "trimmed", "its vocabulary trimmed", _check_vocabulary, _vocabulary, _expected_vocabulary
)
PRUNE = Stage("prune", "pruned", "pruned", _check_prune, _prune, _expected_prune)
FACTORISE = Stage("factorise", "factorised", "factorised", _check_factorise, _factorise, _left_behind)
SHARE = Stage("share", "shared", "its layers shared", _check_share, _share, _left_behind)
