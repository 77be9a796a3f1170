"""Records of people's phones in `benchmarks/devices/`: `python -m benchmarks.device_records` writes their page.

With --check nothing is written: the exit code is 1 where a record is refused, or the page is older than the records.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline import atomic
from pipeline.cli.progress import print_error
from pipeline.errors import EXIT_DONE, EXIT_GATE_FAILED, PipelineError
from pipeline.ship import contribution
from pipeline.ship.contribution import ContributedRecord

HERE = Path(__file__).parent / "devices"
PAGE = "RESULTS.md"


def main(given: Sequence[str] | None = None, root: Path = HERE) -> int:
    """Validate every record, and write the page or compare it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device_records", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where something is wrong")
    options = parser.parse_args(given)
    try:
        found = contribution.contributed_records(root)
    except PipelineError as error:
        print_error(str(error))
        return error.exit_code
    for one in found:
        if one.reason:
            print_error(f"{one.place.relative_to(root)} is refused: {one.reason}")
    text = _page(found)
    page = root / PAGE
    stale = not page.is_file() or page.read_text(encoding="utf-8") != text
    if not options.check:
        atomic.write_text(page, text)
    elif stale:
        print_error(f"{PAGE} is older than the records; `python -m benchmarks.device_records` writes it")
    refused = any(one.reason for one in found)
    return EXIT_GATE_FAILED if refused or (options.check and stale) else EXIT_DONE


def _page(found: Sequence[ContributedRecord]) -> str:
    lines = ["# Phones", "", "Written by `python -m benchmarks.device_records`; nothing here is written by hand.", ""]
    good = [one for one in found if not one.reason]
    lines += contribution.table(good) if good else ["No phone has been measured yet."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
