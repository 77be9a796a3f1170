"""`pocketbert report --serve`: the verified files in a browser, on this machine or on a phone in the same network."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import documents, tables
from pipeline.cli.progress import Progress

if TYPE_CHECKING:
    from pipeline.convert.stage import Target
    from pipeline.recipe.schema import Recipe
    from pipeline.report.browser.offer import Offer
    from pipeline.report.browser.server import Server


def serve(
    recipe: "Recipe",
    build: Path,
    targets: "list[Target]",
    outdated: Mapping[str, str],
    *,
    lan: bool,
    port: int,
    install: bool,
    as_json: bool,
) -> None:
    """Serve the page until somebody interrupts or, on the network, for an hour.

    Raises:
        InputError: the browser's runtime is not here, or the port cannot be had.
        ArtifactError: no file passed.
    """
    from pipeline.report.browser import assets, offer, server

    offered, files = offer.make(recipe.name, build / recipe.name, targets, outdated)
    runtime = offer.runtime()
    folder = build / assets.FOLDER
    if install:
        with Progress(quiet=as_json) as progress:
            assets.install(runtime, folder, progress.note)
    site = server.site(offered, files, runtime, assets.read(runtime, folder))
    place = server.Place(lan=lan, port=port)
    listening = place.listen(site)
    document = {"address": listening.url, "seconds": place.seconds, **offered.model_dump(mode="json")}
    documents.show(as_json, document, partial(_print, listening, offered, lan=lan))
    # Whoever waits for the address reads from a pipe.
    sys.stdout.flush()
    if listening.run(place.seconds) and not as_json:
        tables.say("An hour is over; the address is gone.")


def _print(listening: "Server", offered: "Offer", *, lan: bool) -> None:
    tables.say(f"{len(offered.files)} of {len(offered.files) + len(offered.absent)} files to try in a browser:")
    for file in offered.files:
        tables.say(f"  {file.target}")
    for absent in offered.absent:
        tables.say(f"  not {absent.target}: {absent.reason}")
    tables.say(f"\n  {listening.url}\n")
    if lan:
        tables.say("Whoever has this address and is in your network can open it, for an hour; nothing is encrypted.")
    tables.say("Ctrl-C ends it.")
