"""Contributed latency records of other people's phones: sign them, and check which may stand in a table.

A contribution is a folder `<who>/<device>/` with records and `model.sig`, as a bundle has it, beside `<who>/key.pub`.
The signature says that the holder of that key wrote these records, and that nobody has changed them since; that the
phone did what they say, nobody can prove.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline import atomic, strict
from pipeline.benchmark.record import BenchmarkRecord, texts_digest, unfit
from pipeline.errors import InputError, PipelineError
from pipeline.text.bundled import everyday_sentences
from pipeline.trust import signing

KEY, MODELS = "key.pub", "models.toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class ContributedRecord:
    """A record that was handed in, and why it stands in no table, or None."""

    place: Path
    name: str
    """`<who>/<device>`."""
    record: BenchmarkRecord | None
    reason: str | None


def hand_in(records: Path, name: str, key: Path, into: Path) -> list[Path]:
    """Copy a phone's records into `into/<who>/<device>/`, sign them, and return the files.

    Args:
        records: folder of the records, such as `build/minilm/benchmark-pixel-8`.
        name: `<who>/<device>`.
        key: file with the private key.
        into: such as `benchmarks/devices` of a clone.

    Raises:
        InputError: the name is none, there is no record, or one is no latency of a phone.
        ArtifactError: something lies in the place already that is no record.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"--as {name!r} is no WHO/DEVICE, such as ada/pixel-8.")
    private = signing.read_key(key)
    found = sorted(place for place in records.glob("*.json") if place.name != "records.json")
    found = [place for place in found if not place.name.startswith("plain-")]
    if not found:
        raise InputError(f"{records} holds no record; `pocketbert benchmark --device NAME` writes them.")
    for place in found:
        record = _read(place)
        if isinstance(record, str):
            raise InputError(f"{place} {record}.")
        if reason := _refusal(record):
            raise InputError(f"{place} is not handed in: {reason}.")
    folder = into / name
    folder.mkdir(parents=True, exist_ok=True)
    for place in found:
        atomic.write_text(folder / place.name, place.read_text(encoding="utf-8"))
    atomic.write_text(folder.parent / KEY, signing.public_pem(private))
    signing.sign(folder, name, private)
    return [folder / place.name for place in found]


def contributed_records(root: Path) -> list[ContributedRecord]:
    """Return every record below a folder of contributions, each with the reason that keeps it out, if there is one.

    Raises:
        InputError: the table of models cannot be read.
    """
    models = _models(root / MODELS)
    found: list[ContributedRecord] = []
    for folder in sorted(place for place in root.glob("*/*") if place.is_dir()):
        name = f"{folder.parent.name}/{folder.name}"
        reason = None if _NAME.fullmatch(name) else "its folder is no WHO/DEVICE"
        reason = reason or _unsigned(folder, name)
        files = sorted(folder.glob("*.json"))
        if not files:
            found.append(ContributedRecord(folder, name, None, reason or "there is no record"))
        for place in files:
            record = _read(place)
            if isinstance(record, str):
                found.append(ContributedRecord(place, name, None, reason or record))
            else:
                found.append(
                    ContributedRecord(place, name, record, reason or _refusal(record) or _unknown(record, models))
                )
    return found


def _read(place: Path) -> BenchmarkRecord | str:
    try:
        return strict.read(BenchmarkRecord, place.read_bytes())
    except (OSError, ValueError) as error:
        return f"is no latency record: {str(error).splitlines()[0]}"


def _unsigned(folder: Path, name: str) -> str | None:
    """Return the reason why a folder is not validly signed by the key beside it, or None."""
    try:
        signing.verify(folder, [signing.read_public_key(folder.parent / KEY)], name=name)
    except signing.SignatureRefused as error:
        return f"its signature is refused ({error.reason})"
    except PipelineError as error:
        return str(error).rstrip(".")
    return None


def _refusal(record: BenchmarkRecord) -> str | None:
    """Return the reason why a record may not stand in a table of phones, or None."""
    if record.source == "host":
        return "its source is host, and these are records of phones"
    if reason := unfit(record):
        return reason
    sentences = everyday_sentences()
    if record.timing.texts_sha256 != texts_digest(sentences[: record.timing.texts.texts]):
        return "its texts are not PocketBERT's own sentences, so its times cannot be set beside others"
    return None


def _unknown(record: BenchmarkRecord, models: Mapping[str, str]) -> str | None:
    if record.model.sha256 in models:
        return None
    return f"its model {(record.model.sha256 or 'without digest')[:12]} is none of {MODELS}"


def _models(file: Path) -> dict[str, str]:
    """Return the names of known models by their digests."""
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8"))["models"]
        return {str(digest): str(name) for digest, name in rows.items()}
    except (OSError, tomllib.TOMLDecodeError, KeyError, AttributeError) as error:
        raise InputError(f"{file} cannot be read: {error}.") from error


def table(found: Sequence[ContributedRecord]) -> list[str]:
    """Return the lines of a Markdown table of the records that may stand in one."""
    titles = ("phone", "who", "file", "units", "tokens: p50 / p90 ms (n)", "texts: p50 / p90 / p99 ms (n)")
    lines = [f"| {' | '.join(titles)} | with tokenisation | MB |", "|---|---|---|---|---|---|--:|--:|"]
    return lines + [_row(one.name, one.record) for one in found if one.record is not None and not one.reason]


def _row(name: str, record: BenchmarkRecord) -> str:
    texts, machine = record.timing.texts, record.device
    cells = [
        _plain(", ".join(filter(None, (machine.model_id, machine.soc, machine.os)))),
        name,
        _plain(f"{record.backend.runtime} {record.model.scheme}"),
        _plain(record.backend.compute_units or ""),
        "; ".join(
            f"{at.seq_len}: {_ms(at.wall.p50)} / {_ms(at.wall.p90)} ({at.wall.n})" for at in record.timing.lengths
        ),
        f"{_ms(texts.wall.p50)} / {_ms(texts.wall.p90)} / {_ms(texts.wall.p99)} ({texts.wall.n})",
        _ms(texts.wall_with_tokenisation.p50),
        f"{(record.model.bytes or 0) / 1e6:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    """Return a stranger's text with the characters replaced that would end a table cell or open a tag."""
    return re.sub(r"[|<>`\[\]\s]+", " ", text)


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
