"""`make mutations`: damage files, load and judge each, print what became of them, write benchmarks/MUTATIONS.md."""

import argparse
import sys
import time

from mutations import judging, loading, page
from mutations.bench import JUDGED, LOADED, Bench, summary
from pipeline import formats


def main() -> int:
    """Do what the command line asks for and return the exit code: 1 if a flipped bit was missed."""
    options = _options()
    names = (options.format,) if options.format else formats.NAMES
    bench = Bench(options.seed, options.count, lambda text: print(text, file=sys.stderr, flush=True))
    started = time.monotonic()
    found: dict[str, page.Found] = {}
    with bench.at_work() as pool:
        for subject in bench.subjects(pool, names):
            loaded = bench.run(LOADED, subject)
            isolated = bench.isolated(subject, loaded)
            found[subject.name] = page.Found(subject, loaded, isolated, bench.run(JUDGED, subject))
    missed = 0
    for name, row in found.items():
        print(f"{name}: loaded in a fork: {summary(row.loaded, loading.OUTCOMES)}")
        print(f"{name}: by pipeline.load(isolated=True): {summary(row.isolated, loading.OUTCOMES)}")
        print(f"{name}: one bit flipped: {summary(row.judged, judging.OUTCOMES)}")
        for result in row.judged:
            if result.outcome == judging.MISSED:
                missed += 1
                print(f"missed: {name} {result.path} byte {result.at} bit {result.bit}: {result.said}")
    if names == formats.NAMES:
        page.write(found, seed=options.seed, count=options.count, minutes=(time.monotonic() - started) / 60)
    return 1 if missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="files a format and campaign")
    parser.add_argument("--seed", type=int, default=0, help="what the damage is drawn from")
    parser.add_argument("--format", choices=formats.NAMES, help="this format alone; writes no page")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
