"""In: arguments. Out: what the stages return, printed for people or, with `--json`, for programs.

Nothing else prints or turns a `PipelineError` into an exit code. It may import everything, and nothing imports it but
`benchmarks/`.
"""

from pipeline.cli.app import main

__all__ = ["main"]
