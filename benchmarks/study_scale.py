"""`python -m benchmarks.study_scale`: what grows in a study of thousands of trials that take no work of this machine.

Trials sleep on threads that stand for workers; proposing, telling, records and the journal are a study's own, as
`pocketbert study --parallel 50` uses them, with three objectives and two budgets. After every batch the seconds of a
suggestion and of telling, the megabytes of the journal and the records, and this process's memory are noted. Last, the
seconds in which a killed study opens again. It writes `benchmarks/results/study-scale.json` and a plot beside it.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pipeline.fronts import record
from pipeline.fronts.record import TrialRecord
from pipeline.fronts.spec import Study
from pipeline.study import space
from pipeline.study.proposing import Proposer

RESULTS = Path(__file__).parent / "results"
_STUDY = {
    "name": "scale",
    "recipe": "minilm",
    "objectives": ["metric", "size_mb", "latency_ms"],
    "space": {
        "prune.compute": {"from": 0.1, "to": 0.95, "step": 0.01},
        "prune.layers": ["none", 5, 4, 3, 2],
        "factorise.embedding": {"from": 16, "to": 384, "step": 8},
        "vocabulary.size": {"from": 2000, "to": 30000, "step": 500},
        "target": ["litert:int8_dynamic", "executorch:int8_dynamic"],
    },
}
_BOUNDS = {"size_mb": (12.0, False), "metric": (0.8, True)}


@dataclass(frozen=True)
class Point:
    """The state after a batch."""

    trials: int
    ask_ms: float
    """Of one suggestion, the mean of the batch."""
    tell_ms: float
    journal_mb: float
    records_mb: float
    memory_mb: float


def main(given: Sequence[str] | None = None) -> None:
    """Run the trials and write what grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study_scale", description=__doc__)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--sleep", type=float, default=1.0, help="mean seconds of a trial")
    parser.add_argument("--out", type=Path, default=RESULTS / "study-scale.json")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as name:
        points, opened = run(Path(name), options.trials, options.workers, options.sleep)
    document = {
        "workers": options.workers,
        "sleep_seconds": options.sleep,
        "opened_again_seconds": round(opened, 2),
        "points": [{key: round(value, 3) for key, value in asdict(one).items()} for one in points],
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    plot(points, options.out.with_suffix(".svg"))
    last = points[-1]
    busy = options.sleep / (options.sleep + options.workers * (last.ask_ms + last.tell_ms) / 1e3)
    print(
        f"{last.trials} trials: a suggestion takes {last.ask_ms:.0f} ms, telling {last.tell_ms:.0f} ms, journal "
        f"{last.journal_mb:.1f} MB, records {last.records_mb:.1f} MB, memory {last.memory_mb:.0f} MB; opened again in "
        f"{opened:.1f} s; at the end {options.workers} workers of trials of {options.sleep:g} s are busy "
        f"{100 * busy:.0f} % of the time"
    )


def run(folder: Path, trials: int, workers: int, sleep: float) -> tuple[list[Point], float]:
    """Run trials that sleep in batches of one for each worker; return points, and the seconds of opening again."""
    study = Study.model_validate(_STUDY | {"trials": {"compressed": trials}})
    proposer, draw, points, done = Proposer(study, Path("scale.toml"), folder, {}), random.Random(0), [], 0
    kept: dict[int, TrialRecord] = {}
    with ThreadPoolExecutor(workers) as pool:
        while done < trials:
            began = time.perf_counter()
            asked = [proposer.ask() for _ in range(min(workers, trials - done))]
            between = time.perf_counter()
            list(pool.map(time.sleep, [sleep * draw.uniform(0.5, 1.5) for _ in asked]))
            told = time.perf_counter()
            for proposal, choice in asked:
                kept[proposal.number] = outcome(proposal.number, choice, draw)
                record.append(folder, kept[proposal.number])
                proposer.tell(proposal, kept[proposal.number], _BOUNDS)
            ended = time.perf_counter()
            done += len(asked)
            points.append(
                Point(
                    trials=done,
                    ask_ms=1e3 * (between - began) / len(asked),
                    tell_ms=1e3 * (ended - told) / len(asked),
                    journal_mb=(folder / record.JOURNAL).stat().st_size / 1e6,
                    records_mb=(folder / record.TRIALS).stat().st_size / 1e6,
                    memory_mb=psutil.Process().memory_info().rss / 1e6,
                )
            )
            if done % (20 * workers) == 0:
                print(points[-1], flush=True)
    began = time.perf_counter()
    Proposer(study, Path("scale.toml"), folder, {}).settle(record.read_trials(folder), _BOUNDS)
    return points, time.perf_counter() - began


def outcome(number: int, choice: space.Choice, draw: random.Random) -> TrialRecord:
    """Return a made-up student: the more is kept, the better, the larger and the slower, with some luck."""
    compute = choice["prune.compute"] * (1 if choice["prune.layers"] == "none" else choice["prune.layers"] / 6)
    table = choice["factorise.embedding"] * choice["vocabulary.size"] / (384 * 30000)
    metric = 0.87 - 0.15 * (1 - compute) ** 2 - 0.1 * (1 - table) ** 2 + draw.gauss(0, 0.002)
    measures = {"metric": metric, "size_mb": 0.5 + 11 * compute + 12 * table, "latency_ms": 0.3 + 6 * compute}
    target = str(choice["target"]).replace(":", "-")
    return TrialRecord(number=number, choice=dict(choice), target=target, step="compressed", measures=measures)


def plot(points: Sequence[Point], place: Path) -> None:
    """Draw what grew against the number of trials, as SVG."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    shown = {
        "ms of a suggestion": [one.ask_ms for one in points],
        "ms of telling": [one.tell_ms for one in points],
        "MB of journal and records": [one.journal_mb + one.records_mb for one in points],
        "MB of memory": [one.memory_mb for one in points],
    }
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "pocketbert", "font.size": 9}):
        figure = Figure(figsize=(9, 5), layout="constrained")
        FigureCanvasSVG(figure)
        for number, (title, values) in enumerate(shown.items(), 1):
            axes = figure.add_subplot(2, 2, number)
            axes.plot([one.trials for one in points], values, color="#0072b2")
            axes.set(title=title, xlabel="trials", ylim=(0, None))
            axes.grid(visible=True, color="#e6e9ed")
        figure.savefig(place, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
