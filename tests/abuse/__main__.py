"""`make abuse`: run the campaigns, print their figures, write benchmarks/ABUSE.md; a stopped one goes on."""

import argparse
import functools
import signal
import sys
import time

from abuse import kills, scene
from abuse.findings import Kept, carry_out


def main() -> int:
    options = _options()
    deadline = time.monotonic() + 60 * options.minutes
    project = scene.project()
    kept = Kept("kills", options.seed)
    carry_out(
        kept,
        functools.partial(kills.kill, project, options.seed),
        options.kills,
        deadline,
        lambda t: print(t, flush=True),
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make abuse", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--kills", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
