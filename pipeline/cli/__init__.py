"""The command `pocketbert`.

It reads arguments, calls the stages, and prints what they return. It may import everything, and nothing imports it
but `benchmarks/`. Nothing else prints or turns a `PipelineError` into an exit code.
"""

from pipeline.cli.app import main

__all__ = ["main"]
