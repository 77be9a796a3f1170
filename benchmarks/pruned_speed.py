"""How much faster pruned students are in LiteRT and ExecuTorch, beside what their multiply-adds promise.

    python -m benchmarks.pruned_speed UNPRUNED PRUNED [PRUNED ...]

takes recipes by name or path, makes the files that both have, and times all of them in one run, interleaved, with one
thread. It prints the table, and writes it with the record into `benchmarks/results/`. `make pruned-speed` does it for
the ready recipes.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pruned_speed_record import Row, Speed, page, row
from pipeline.benchmark import stage as benchmark
from pipeline.benchmark.record import BenchmarkRecord
from pipeline.checkpoint import source as student
from pipeline.cli.progress import Progress, print_error
from pipeline.cli.tables import say
from pipeline.compress.prune.structure import EncoderShape, encoder_macs, stored_shape
from pipeline.convert.stage import Target, targets
from pipeline.convert.targets import finished_model
from pipeline.errors import EXIT_DONE, InputError, PipelineError
from pipeline.planning import run as running
from pipeline.planning.request import Request
from pipeline.recipe import loading as recipes
from pipeline.recipe.schema import BenchmarkSection, Recipe
from pipeline.text.bundled import everyday_sentences

RESULTS = Path(__file__).parent / "results"
BACKENDS = ("litert", "executorch")
_FEATURES = ("avx512_vnni", "avx_vnni", "dotprod", "i8mm")
"""In the record's name: what int8 gains depends on them."""


@dataclass(frozen=True)
class Timed:
    """A recipe whose files are timed."""

    recipe: Recipe
    folder: Path
    """Where its files are shown."""
    shape: EncoderShape

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return self.recipe.name


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pruned_speed", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("unpruned", help="recipe of the student before pruning")
    parser.add_argument("pruned", nargs="+", help="recipes of pruned ones")
    parser.add_argument("--build", type=Path, default=Path("build"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--length", type=int, action="append", help="tokens of a row; 32 and 128 unless given")
    parser.add_argument("--rounds", type=int, default=40, help="2 or more")
    parser.add_argument("--runs", type=int, default=5, help="of a file in a round")
    options = parser.parse_args(given)
    try:
        found = run(options)
    except PipelineError as error:
        print_error(str(error))
        return error.exit_code
    say("\n".join(page(found)))
    return EXIT_DONE


def run(options: argparse.Namespace) -> Speed:
    """Make the files, time them, and write the record.

    Raises:
        PipelineError: recipes that cannot be carried out, or have nothing in common.
    """
    lengths = sorted(set(options.length or (32, 128)))
    read = [recipes.read_recipe(name) for name in (options.unpruned, *options.pruned)]
    expected = _common([recipe for recipe, _ in read], lengths, options.rounds)
    with Progress(quiet=False) as progress:
        made = [_make(Request(*one, "convert", expected), options.build, progress) for one in read]
        progress.started("measuring")
        variants = [
            benchmark.of_target(finished_model(one.folder, target), one.name) for one in made for target in expected
        ]
        # Every block has the same number of runs, so that rounds can be told apart and paired.
        settings = BenchmarkSection(
            lengths=tuple(lengths), rounds=options.rounds, block_ms=0, runs_per_block=options.runs, text_passes=1
        )
        records = benchmark.measure(
            variants,
            lengths,
            everyday_sentences()[:1],
            1,
            settings,
            log=options.build / "pruned-speed.log",
            tell=lambda what, fraction: progress.advanced("measuring", what, fraction),
        )
    found = Speed(
        unpruned=made[0].name,
        rounds=options.rounds,
        rows=list(_rows(made, expected, records, settings)),
        records=records,
    )
    _write(found, options.results)
    return found


def _common(read: Sequence[Recipe], lengths: Sequence[int], rounds: int) -> list[Target]:
    """Return the targets that all recipes have."""
    names = [recipe.name for recipe in read]
    if len(set(names)) < len(names):
        raise InputError(f"two of the recipes have one name, and so one folder: {', '.join(names)}.")
    if rounds < 2:
        raise InputError(f"--rounds {rounds} gives no interval; 2 or more do.")
    every = [[target for target in targets(recipe) if target.backend in BACKENDS] for recipe in read]
    found = [target for target in every[0] if all(target in others for others in every)]
    if not found:
        raise InputError(f"recipes {', '.join(names)} have no target of {' or '.join(BACKENDS)} in common.")
    longest = min(recipe.lengths(target.backend)[-1] for recipe in read for target in found)
    if lengths[-1] > longest:
        raise InputError(f"--length {lengths[-1]} is beyond what a recipe's files take, {longest} tokens.")
    return found


def _make(request: Request, build: Path, progress: Progress) -> Timed:
    """Make a recipe's files, or find that they are there."""
    made = running.run(request, build, progress).at(request.recipe.name, "student")
    assert made is not None, "conversion makes it"
    source = student.inspect_folder(made.path, origin=request.recipe.name, licence=None)
    return Timed(request.recipe, build / request.recipe.name, stored_shape(source))


def _rows(
    made: Sequence[Timed], expected: Sequence[Target], records: Sequence[BenchmarkRecord], settings: BenchmarkSection
) -> list[Row]:
    """Compare each pruned file with the unpruned one of its target."""
    by_name = {record.model.id: {one.seq_len: one for one in record.timing.lengths} for record in records}
    unpruned, *others = made
    rows = []
    for one in others:
        for target in expected:
            for length in settings.lengths:
                before, after = (by_name[f"{other.name}-{target}"][length] for other in (unpruned, one))
                whole = encoder_macs(unpruned.shape, length=before.ran_at)
                left = encoder_macs(one.shape, length=after.ran_at)
                names = (one.name, target.backend, target.scheme)
                rows.append(row(names, before, after, whole / left, settings.rounds))
    return rows


def _write(found: Speed, results: Path) -> None:
    """Keep the record and the table, under a name that says what the processor can do."""
    device = found.records[0].device
    features = [feature for feature in device.cpu_features if feature in _FEATURES]
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"pruned-speed-{device.abi}-{'-'.join(features) or 'plain'}.json"
    path.write_text(found.model_dump_json() + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text("\n".join(page(found)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
