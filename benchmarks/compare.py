"""`make compare`: the comparison of 2019 on the machine at hand, BERT-base beside its students in every format.

Weights are random unless a checkpoint is named, which the table says: latency does not depend on them. Files are made
one export at a time. Each file is timed in turns with BERT-base's of the same format in one run; what is kept by then
is not done again, so a stopped run goes on where it was. The table is written to COMPARISON.md after each cell.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import compare_page, compare_pass, compare_phones, compare_record
from benchmarks.compare_cases import BASE, BUILD, CASES, MINUTES, PAGE, SIZED, TIMED, recipe_of, source_of
from benchmarks.compare_phones import Phone
from benchmarks.compare_record import SETTINGS, Cell, Passes
from benchmarks.peers import texts as sentences_of
from benchmarks.support_cases import Case, slug, write_source
from pipeline import artifact, atomic
from pipeline.benchmark import timed
from pipeline.benchmark.record import BenchmarkRecord
from pipeline.benchmark.stage import measure, of_student, of_target
from pipeline.benchmark.variants import Variant
from pipeline.cli.progress import Progress, print_error
from pipeline.convert.stage import Target
from pipeline.convert.targets import finished_model
from pipeline.data.datasets import DATASETS
from pipeline.devices import host
from pipeline.errors import EXIT_DONE, InputError, PipelineError
from pipeline.execution.worker import Worker
from pipeline.metrics import measures
from pipeline.planning import run as running
from pipeline.planning.request import Request
from pipeline.recipe.schema import Recipe

_PASSED = (BASE, "DistilBERT")
"""Whose pass over STS-B dev is measured, as in the paper of 2019."""
_JUDGED = 6
"""Texts on which a file is compared with PyTorch."""


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--only", action="append", metavar="MODEL", help="this model; may be repeated")
    parser.add_argument(
        "--checkpoint", action="append", default=[], metavar="MODEL=SOURCE", help="a trained checkpoint for a row"
    )
    parser.add_argument(
        "--device", action="append", metavar="NAME", help="only this phone; may be repeated (else every one attached)"
    )
    parser.add_argument("--no-phones", action="store_true", help="time on this machine alone")
    parser.add_argument("--keep-files", action="store_true", help="keep each model's files when its cells are done")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--plan", action="store_true", help="say what there is, what is left and how long it may take")
    alone.add_argument("--page", action="store_true", help="write the page of what is kept, measure nothing")
    options = parser.parse_args(given)
    try:
        cases, checkpoints = _chosen(options.only), _checkpoints(options.checkpoint)
        if options.plan:
            print("\n".join(_plan(cases, checkpoints)))
            return EXIT_DONE
        if not options.page:
            with Progress(quiet=False) as progress:
                phones = [] if options.no_phones else compare_phones.attached(options.device, progress.note)
                _Comparison(checkpoints, phones, progress, keep_files=options.keep_files).run(cases)
        _write_page()
    except PipelineError as error:
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_error("stopped; the same command goes on from here")
        return 130
    return EXIT_DONE


def _chosen(names: Sequence[str] | None) -> list[Case]:
    every = {case.name: case for case in CASES}
    if unknown := [name for name in names or () if name not in every]:
        raise InputError(f"--only {unknown[0]} is no row of the table; there are: {', '.join(every)}.")
    return [case for case in CASES if not names or case.name in names]


def _checkpoints(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals or name not in {case.name for case in CASES}:
            raise InputError(f"--checkpoint {text} is no MODEL=SOURCE; models: {', '.join(one.name for one in CASES)}.")
        found[name] = source
    return found


def _plan(cases: Sequence[Case], checkpoints: Mapping[str, str]) -> list[str]:
    lines, left = [], 0.0
    folder = compare_record.folder_of(host.describe())
    for case in cases:
        missing = _missing(folder, case, recipe_of(case, checkpoints.get(case.name)))
        making, timing = MINUTES[case.name]
        share = sum(target in TIMED for target in missing) / len(TIMED)
        minutes = making + timing * share if missing else 0.0
        left += minutes
        state = f"{', '.join(map(str, missing))}, about {minutes:.0f} minutes" if missing else "there"
        lines.append(f"{case.name}: {state}")
    return [*lines, f"about {left / 60:.1f} hours left on this machine, estimated from one with two cores"]


def _missing(folder: Path, case: Case, recipe: Recipe) -> list[Target]:
    """Return the targets that have no cell of this recipe, these settings and these tools."""
    return [target for target in (*TIMED, *SIZED) if _kept(folder, case, recipe, target) is None]


def _kept(folder: Path, case: Case, recipe: Recipe, target: Target) -> Cell | None:
    kept = compare_record.read(Cell, _place(folder, case, target))
    return kept if kept and kept.key == compare_record.key_of(recipe, target) else None


def _place(folder: Path, case: Case, target: Target) -> Path:
    return folder / f"{slug(case)}-{target}.json"


def _write_page() -> None:
    atomic.write_text(PAGE, "\n".join(compare_page.lines()) + "\n")


class _Comparison:
    """One run of the command."""

    def __init__(
        self, checkpoints: Mapping[str, str], phones: Sequence[Phone], progress: Progress, *, keep_files: bool
    ) -> None:
        self._checkpoints = checkpoints
        self._phones = phones
        self._progress = progress
        self._keep_files = keep_files
        self._folder = compare_record.folder_of(host.describe())
        self._log = BUILD / "compare.log"
        self._texts_name, self._texts = sentences_of(SETTINGS.texts)

    def run(self, cases: Sequence[Case]) -> None:
        """Make and time what is missing, row by row."""
        for case in cases:
            recipe = self._recipe(case)
            missing = _missing(self._folder, case, recipe)
            on_phones = [
                (phone, target)
                for phone in self._phones
                for target in _missing(phone.folder, case, recipe)
                if compare_phones.runs(phone, target)
            ]
            if expected := list(dict.fromkeys([*missing, *(target for _, target in on_phones)])):
                for backend in dict.fromkeys(target.backend for target in expected):
                    # All schemes of a format come from one export.
                    self._make(case, [target for target in expected if target.backend == backend])
                for target in missing:
                    self._cell(case, target)
                    _write_page()
                for phone, target in on_phones:
                    self._phone_cell(phone, case, target)
                    _write_page()
                if not self._keep_files and case.name not in _PASSED:
                    # Half a gigabyte to four each.
                    self._progress.note(f"{case.name} is done; its files are removed")
                    self._remove(case)
        self._pass()
        _write_page()

    def _recipe(self, case: Case) -> Recipe:
        return recipe_of(case, self._checkpoints.get(case.name))

    def _make(self, case: Case, targets: Sequence[Target]) -> Path:
        """Make the files of a row that are not there; return the recipe's folder."""
        recipe = self._recipe(case)
        if case.name not in self._checkpoints and not (source_of(case) / "config.json").is_file():
            with Worker(self._log) as worker:
                worker.call(write_source, case, source_of(case))
        running.run(Request(recipe, PAGE, "convert", list(targets)), BUILD, self._progress)
        return BUILD / recipe.name

    def _remove(self, case: Case) -> None:
        from pipeline.planning import cleaning

        cleaning.clean(BUILD, self._recipe(case).name, tell=self._progress.note)
        shutil.rmtree(source_of(case), ignore_errors=True)

    def _cell(self, case: Case, target: Target) -> None:
        made = BUILD / self._recipe(case).name
        student = artifact.load(made / "student")
        variant = of_target(finished_model(made, target))
        records: list[BenchmarkRecord | None] = [None, None]
        if target in TIMED or sys.platform == "darwin":
            label = f"timing {case.name}, {target}"
            self._progress.started(label)
            beside = [] if case.name == BASE else [of_target(finished_model(self._base(target), target), "base")]
            found = measure(
                [variant, *beside],
                SETTINGS.lengths,
                self._texts,
                1,
                SETTINGS,
                log=self._log,
                tell=partial(self._progress.advanced, label),
            )
            records[: len(found)] = found
        cell = Cell(
            key=compare_record.key_of(self._recipe(case), target),
            model=case.name,
            target=str(target),
            trained=case.name in self._checkpoints,
            parameters=student.manifest.metrics["parameters"],
            file_bytes=variant.bytes or 0,
            texts=self._texts_name,
            worst_sqnr_db=self._worst(variant, of_student(student, SETTINGS.lengths[-1])),
            record=records[0],
            beside=records[1],
        )
        compare_record.write(cell, _place(self._folder, case, target))

    def _phone_cell(self, phone: Phone, case: Case, target: Target) -> None:
        """Time a file on a phone; what it computes was set beside PyTorch here."""
        here = _kept(self._folder, case, self._recipe(case), target)
        assert here is not None, "this machine's cell is made first"
        made = BUILD / self._recipe(case).name
        files = [(f"{slug(case)}-{target}", finished_model(made, target))]
        if case.name != BASE:
            files.append((f"{slug(CASES[0])}-{target}", finished_model(self._base(target), target)))
        label = f"timing {case.name}, {target}, on {phone.device.name}"
        self._progress.started(label)
        record, *beside = phone.measure(files, self._texts, partial(self._progress.advanced, label))
        cell = here.model_copy(update={"record": record, "beside": beside[0] if beside else None})
        compare_record.write(cell, _place(phone.folder, case, target))

    def _base(self, target: Target) -> Path:
        return self._make(CASES[0], [target])

    def _worst(self, variant: Variant, reference: Variant) -> float:
        """Return the worst SQNR of some texts in dB, against fp32 PyTorch: that what is timed still is the model."""
        texts = self._texts[:: max(1, len(self._texts) // _JUDGED)][:_JUDGED]
        true, found = (self._outputs(one, texts) for one in (reference, variant))
        return min(measures.sqnr_db(a, b) for a, b in zip(true, found, strict=True))

    def _outputs(self, variant: Variant, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        with Worker(self._log) as worker:
            worker.call(timed.prepare, variant.import_runtime)
            worker.call(timed.open_variant, partial(variant.open_with_threads, 1), texts[0])
            found: list[NDArray[np.float32]] = worker.call(timed.outputs, texts)
        return found

    def _pass(self) -> None:
        """Time one pass over STS-B dev for the two models of the paper."""
        if DATASETS["stsb"].absent() is not None:
            self._progress.note("POCKETBERT_DATA has no STS-B: the pass over its dev pairs is left out")
            return
        cases = [case for case in CASES if case.name in _PASSED]
        key = artifact.digest_of([compare_record.key_of(self._recipe(case), None) for case in cases])
        place = self._folder / "stsb-pass.json"
        kept = compare_record.read(Passes, place)
        if kept is None or kept.key != key:
            made = [(case.name, self._make(case, compare_pass.TARGETS)) for case in cases]
            compare_record.write(compare_pass.measure(key, made, self._log, self._progress), place)


if __name__ == "__main__":
    sys.exit(main())
