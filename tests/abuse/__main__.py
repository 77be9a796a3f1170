"""`make abuse`: run the campaigns, print their figures, write benchmarks/ABUSE.md; a stopped one goes on."""

import argparse
import functools
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing

from warm import session

from abuse import disks, hostile, inputs, kills, page, pairs, scene
from abuse.findings import VIOLATED, Finding, Kept, carry_out
from abuse.forked import Forks

CAMPAIGNS = ("inputs", "hostile", "disks", "pairs", "kills")
_CASES = {"kills": 200, "disks": 40, "pairs": 36}
"""How many are drawn; inputs and prepared folders are listed, and all of them run."""


def main() -> int:
    """Do what the command line asks for and return the exit code: 1 if something was violated."""
    options = _options()
    began = time.monotonic()
    deadline = began + 60 * options.minutes
    names = tuple(options.only or CAMPAIGNS)
    found: dict[str, dict[int, Finding]] = {}
    unfinished = []
    with ExitStack() as stack:
        for name in names:
            kept = Kept(name, options.seed)
            one, wanted = _campaign(name, options.seed, stack)
            wanted = min(wanted, options.count or wanted)
            print(f"{name}: {kept.counted} of {wanted} were done before", flush=True)
            carry_out(kept, one, wanted, deadline, lambda text: print(text, flush=True))
            found[name] = kept.findings
            if kept.counted < wanted:
                unfinished.append(name)
            counts = Counter(finding.outcome for finding in kept.findings.values())
            print(f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(counts.items()))}", flush=True)
    if unfinished:
        print(f"the time is over; {', '.join(unfinished)} would go on.")
    if names == CAMPAIGNS and not options.count:
        minutes = sum(Kept(name, options.seed).minutes for name in names)
        page.write(found, unfinished, seed=options.seed, minutes=minutes)
    return 1 if any(one.outcome == VIOLATED for row in found.values() for one in row.values()) else 0


def _campaign(name: str, seed: int, stack: ExitStack) -> tuple[Callable[[int], Finding], int]:
    """Return what does the case of a number, and how many there are."""
    stack.callback(session().end)
    project = scene.project()
    if name in ("inputs", "hostile"):
        forks = stack.enter_context(closing(Forks()))
        if name == "inputs":
            bad = inputs.cases(project, seed)
            return functools.partial(inputs.give, project, bad, forks), len(bad)
        prepared = hostile.cases(seed)
        return functools.partial(hostile.give, project, prepared, forks), len(prepared)
    draws = {"kills": kills.kill, "disks": disks.fill, "pairs": pairs.together}
    return functools.partial(draws[name], project, seed), _CASES[name]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make abuse", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="what moments, sizes and values are drawn from")
    parser.add_argument("--minutes", type=float, default=120, help="begin no case after so many minutes")
    parser.add_argument("--only", choices=CAMPAIGNS, action="append", help="this campaign alone; writes no page")
    parser.add_argument("--count", type=int, help="so many cases of each campaign; writes no page")
    return parser.parse_args()


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts what goes on in the background so, and the commands that are interrupted would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
