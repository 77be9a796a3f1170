"""`python -m docs.schemas [--check]`."""

import argparse
import sys
from collections.abc import Sequence

from docs.schemas import files, text


def main(given: Sequence[str] | None = None) -> int:
    """Write the schemas, or compare them with the models; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m docs.schemas", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a schema is stale")
    options = parser.parse_args(given)
    stale = 0
    for place, name in files():
        file = place / f"{name}.schema.json"
        if file.is_file() and file.read_text(encoding="utf-8") == text(name):
            continue
        stale += 1
        if options.check:
            print(f"{file} is older than its model; `make docs` writes it.", file=sys.stderr)
        else:
            place.mkdir(parents=True, exist_ok=True)
            file.write_text(text(name), encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
