"""In: arguments. Out: the results of the stages, printed for people or, with `--json`, for programs.

Nothing else prints or turns a `PipelineError` into an exit code. It may import everything, and nothing imports it but
`benchmarks/`.
"""

import sys
from typing import NoReturn

__all__ = ["main"]


def main() -> NoReturn:
    """Run the command and leave with its exit code; Ctrl-C is one line from the first import on."""
    try:
        from pipeline.cli import app
    except KeyboardInterrupt:
        sys.stderr.write("error: interrupted before anything began\n")
        sys.exit(130)
    app.main()
