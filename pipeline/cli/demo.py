"""`pocketbert demo`: make the demo apps' models from ready recipes, ship them, and report the apps' sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.inventory import needs
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.cli.progress import Progress
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError

if TYPE_CHECKING:
    from pipeline.search.indexing import Outcome
    from pipeline.search.texts import Source
    from pipeline.ship.placing import ShippedModel

_STEP = "index"
MODELS: Mapping[str, str] = {
    "minilm": "semantic search",
    "sentiment-small": "sentiment, SMALL: it learned from the package's 120 reviews",
    "entities-small": "people, places and organisations, SMALL: it learned from the package's 360 sentences",
    "sst2": "sentiment",
    "wnut17": "entities",
    "xquad": "question answering, WEAK: it learned from a few hundred questions",
    "bert-base-random": "BERT-base's shape with random weights, for latency alone",
}
"""The models of the demo apps: names of ready recipes, each with its purpose."""


@dataclass
class _Demo:
    """The outcome of `pocketbert demo`."""

    shipped: list[tuple["ShippedModel", list[Path]]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Recipes that were not made, or targets that were not shipped, with the reason."""
    failed: bool = False
    """Whether a verdict is `failed`."""
    index: "Outcome | None" = None
    """The index for both apps' search, where texts were given."""
    app_bytes: dict[str, int] = field(default_factory=dict)
    """All models that lie in each app now, earlier ones included."""


def demo(
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Only the models of this recipe; may be repeated.")
    ] = None,
    backend: Annotated[
        list[str] | None, typer.Option("--backend", help="Only files of this format; may be repeated.")
    ] = None,
    into: Annotated[Path, typer.Option(help="Project with android-demo/ and ios-demo/.")] = Path(),
    index: Annotated[
        list[Path] | None,
        typer.Option("--index", help="Texts for the apps' search, as `pocketbert index` takes them; may be repeated."),
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Words of a passage into which those texts are cut.")] = 60,
    build: BuildFolder = BUILD,
    sign: Annotated[
        Path | None, typer.Option("--sign", help="Sign with this private key; verification is thorough then.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be made; make nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the demo apps' models from ready recipes, and ship them."""
    chosen = _chosen(only)
    _check_backends(backend)
    source = _source(index, window) if index else None
    missing = {name: needs(name) for name in chosen}
    if not as_json:
        tables.say(_plan(missing))
    document: dict[str, Any] = {"models": {name: MODELS[name] for name in chosen}, "needs": missing}
    if dry_run:
        documents.show(as_json, document, lambda: None)
        return
    from pipeline.ship import apps

    found = _Demo(left_out={name: "; ".join(reasons) for name, reasons in missing.items() if reasons})
    with Progress(quiet=as_json) as progress:
        for name in (name for name in chosen if name not in found.left_out):
            _make(name, backend, build, into, sign, progress, found)
        if source is not None:
            _index(source, build, into, progress, found)
    found.app_bytes = {app: _bytes(into / place) for app, place in apps.PLACES.items()}
    code = EXIT_GATE_FAILED if found.failed else EXIT_DONE
    document |= {
        "shipped": [
            one.model_dump(mode="json") | {"places": [str(place) for place in places]} for one, places in found.shipped
        ],
        "left_out": found.left_out,
        "app_bytes": found.app_bytes,
        "index": found.index and documents.index_document(found.index),
    }
    documents.show(as_json, document, partial(_print, found), code)
    raise typer.Exit(code)


def _source(texts: Sequence[Path], window: int) -> "Source":
    """Return the texts of the index, which are read once to see that they can be."""
    from pipeline.search.texts import Source

    source = Source(texts, window=window)
    _ = source.total
    return source


def _chosen(only: Sequence[str] | None) -> list[str]:
    if unknown := [name for name in only or () if name not in MODELS]:
        raise InputError(f"--only {unknown[0]} is no model of the demo; there are: {', '.join(MODELS)}.")
    return [name for name in MODELS if not only or name in only]


def _check_backends(only: Sequence[str] | None) -> None:
    from pipeline.schemes import BACKENDS

    if unknown := [name for name in only or () if name not in BACKENDS]:
        raise InputError(f"--backend {unknown[0]} does not exist; there are: {', '.join(BACKENDS)}.")


def _plan(missing: Mapping[str, Sequence[str]]) -> str:
    lines = ["The demo's models:"]
    for name, reasons in missing.items():
        lines.append(f"  {name}: {MODELS[name]}")
        lines += [f"    left out: it needs {reason}" for reason in reasons]
    return "\n".join(lines)


def _make(
    name: str,
    backend: Sequence[str] | None,
    build: Path,
    into: Path,
    sign: Path | None,
    progress: Progress,
    found: _Demo,
) -> None:
    """Verify a recipe's smallest file of each format, and ship the files that passed."""
    from pipeline.convert.targets import choose_targets
    from pipeline.planning import run as running
    from pipeline.planning.request import Request
    from pipeline.recipe.loading import read_recipe
    from pipeline.ship import apps

    recipe, file = read_recipe(name)
    targets = [
        target
        for target in apps.choose(recipe, choose_targets(recipe, []), explicit=False)
        if not backend or target.backend in backend
    ]
    request = Request(recipe, file, "verify", targets, thorough=sign is not None)
    verdicts = running.parities(running.run(request, build, progress), recipe.name)
    for target in list(targets):
        parity = verdicts[str(target)]
        if parity.verdict != "passed":
            found.failed |= parity.verdict == "failed"
            found.left_out[f"{name}/{target}"] = f"its verdict is {parity.verdict}: {parity.reasons[0]}"
            targets.remove(target)
    if targets:
        shipped = apps.ship(recipe, build, targets, into, allow_not_run=False, outdated={}, named=name, sign=sign)
        found.shipped += shipped


def _index(source: "Source", build: Path, into: Path, progress: Progress, found: _Demo) -> None:
    """Make the index of the apps' search with the first embedding model that was shipped, and put it beside the models.

    Files of one student share a vector space, so the index serves every format of that model in both apps.
    """
    from pipeline.search import embedding, indexing, placing
    from pipeline.ship import apps

    models = [one for one, _ in found.shipped if one.task == "embedding"]
    if not models:
        found.left_out["index"] = "no embedding model was shipped that could make it"
        return
    model = models[0]
    request = indexing.Request(source, build / "index" / f"demo-{model.recipe}")
    progress.started(_STEP)
    with embedding.opened(build / model.recipe / model.target / "model") as embedder:
        found.index = indexing.run(request, embedder, partial(progress.advanced, _STEP))
    placing.place(request.place, [into / place for place in apps.PLACES.values()])


def _bytes(root: Path) -> int:
    from pipeline.ship import placing

    index = root / placing.INDEX
    if not index.is_file():
        return 0
    return sum(one.bytes for one in placing.Index.model_validate_json(index.read_bytes()).models)


def _print(found: _Demo) -> None:
    tables.print_shipped(found.shipped)
    for name, reason in found.left_out.items():
        tables.say(f"left out: {name}: {reason}")
    if found.index is not None:
        made = found.index
        tables.say(f"search: {made.passages:,} passages in both apps, {made.bytes / 1e6:.1f} MB each")
    for app, size in found.app_bytes.items():
        tables.say(f"{app}: {size / 1e6:.0f} MB of models, beside the app itself")
