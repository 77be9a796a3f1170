"""`pocketbert signing-key` and `pocketbert verify-signature`: keys, and whether a folder is as its owner signed it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli import documents, tables
from pipeline.cli.documents import AsJson
from pipeline.cli.options import BUILD, BuildFolder
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, InputError

app = typer.Typer(help="Make keys that sign models, and show them.", no_args_is_help=True, rich_markup_mode="markdown")


@app.command()
def new(
    place: Annotated[Path, typer.Argument(help="File for the private key; the public one goes into PLACE.pub.")],
    as_json: AsJson = False,
) -> None:
    """Make an ECDSA P-256 key. POCKETBERT_KEY_PASSWORD encrypts the private half."""
    from pipeline.trust import signing

    private, public = signing.new_key(place)
    _show_key(public, as_json, f"wrote {private} (keep it secret, and a copy of it) and {public}")


@app.command()
def show(
    public: Annotated[Path, typer.Argument(help="File with the public key.")],
    as_json: AsJson = False,
) -> None:
    """Show a public key's fingerprint, and the line for an app's list of trusted keys."""
    _show_key(public, as_json, str(public))


def _show_key(public: Path, as_json: bool, said: str) -> None:
    from pipeline.trust import signing

    key = signing.read_public_key(public)
    document = {"public": str(public), "fingerprint": signing.fingerprint(key), "trusted_key": signing.compiled(key)}
    text = (
        f"{said}\nfingerprint {document['fingerprint']}\nfor the app's list of trusted keys:\n{document['trusted_key']}"
    )
    documents.show(as_json, document, partial(tables.say, text))


def hand_in(
    records: Annotated[Path, typer.Argument(help="Folder of a phone's records, such as minilm/benchmark-pixel-8.")],
    name: Annotated[str, typer.Option("--as", help="WHO/DEVICE: your name on GitHub, and a name for the phone.")],
    key: Annotated[Path, typer.Option("--key", help="File with your private key; `signing-key new` makes one.")],
    into: Annotated[Path, typer.Option("--into", help="Folder of contributions, in a clone.")] = Path(
        "benchmarks/devices"
    ),
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Sign your phone's latency records for the public table."""
    from pipeline.planning import places
    from pipeline.ship import contribution

    found = contribution.hand_in(places.below(records, build), name, key, into)
    text = f"{len(found)} records signed as {name}; send {into / name} and the key.pub beside it"
    documents.show(as_json, {"name": name, "files": [str(one) for one in found]}, partial(tables.say, text))


def verify_signature(
    folder: Annotated[
        Path, typer.Argument(help="A shipped model, an app's folder of models, or a bundle that `push` wrote.")
    ],
    key: Annotated[list[Path], typer.Option("--key", help="File with a public key to trust; may be repeated.")],
    build: BuildFolder = BUILD,
    as_json: AsJson = False,
) -> None:
    """Check who signed a folder, and that it is unchanged.

    Exits with 1 if no trusted key did, or if a file was changed since, as a release app would refuse it.
    """
    from pipeline.planning import places
    from pipeline.trust import signing

    keys = [signing.read_public_key(path) for path in key]
    rows: list[dict[str, object]] = []
    for place, name, ignored in _folders(places.below(folder, build)):
        try:
            signed = signing.verify(place, keys, name=name, ignored=ignored)
        except signing.SignatureRefused as error:
            rows.append({"folder": str(place), "reason": error.reason, "message": str(error)})
        else:
            said = f"{place}: {len(signed.files)} files as signed for {signed.name} by {signed.fingerprint[:16]}"
            rows.append({"folder": str(place), "reason": None, "name": signed.name, "message": said})
    code = EXIT_GATE_FAILED if any(row["reason"] for row in rows) else EXIT_DONE
    text = "\n".join(str(row["message"]) for row in rows)
    documents.show(as_json, {"folders": rows}, partial(tables.say, text), code)
    raise typer.Exit(code)


def _folders(folder: Path) -> Iterator[tuple[Path, str | None, tuple[str, ...]]]:
    """Yield each signed folder below a folder: its path, the required name, and the files that need no signature."""
    from pipeline.ship import placing, record
    from pipeline.trust import signing

    index = folder / placing.INDEX
    if index.is_file():
        found = placing.read_index(index)
        if found is None or not found.models:
            raise InputError(f"{index} lists no model that `pocketbert ship` wrote.")
        for one in found.models:
            if one.folder != f"{one.recipe}/{one.backend}-{one.scheme}" or "/" in one.recipe or one.recipe == "..":
                raise InputError(f"{index} lists {one.folder!r}, which leads out of it or is none of its own model.")
            yield folder / one.folder, one.folder, ()
    else:
        yield folder, None, signing.BESIDE_BUNDLE if (folder / record.BUNDLE).is_file() else ()
