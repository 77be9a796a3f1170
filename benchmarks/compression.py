"""`make compression`: published ways to make MiniLM small, on public data, written to COMPRESSION.md.

Needs POCKETBERT_DATA. What has a record of this code and these settings is kept, so a stopped run goes on where it was;
a training that was stopped goes on from its last checkpoint. One row: `python -m benchmarks.compression --only ROW`.
"""

import sys
from collections.abc import Sequence

from benchmarks import compression_page, trials_command
from benchmarks.compression_rows import TABLE


def main(given: Sequence[str] | None = None) -> int:
    """Carry out the rows that are missing, and write the page."""
    return trials_command.main(TABLE, compression_page.page, __doc__, given)


if __name__ == "__main__":
    sys.exit(main())
