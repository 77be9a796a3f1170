"""What follows from trials: the front, who goes on, the answer, what a budget costs, and a recommendation."""

import tomllib
from pathlib import Path

import pytest
from study.records import record, study, trial

from pipeline.errors import ArtifactError, InputError
from pipeline.fronts import answering, front, page, recipes, recommending, selection
from pipeline.fronts import record as records
from pipeline.fronts.record import Answer, Measured, Reported, TrialRecord
from pipeline.recipe import loading

TRIALS = [
    trial(0, 0.90, 20.0),
    trial(1, 0.88, 12.0),
    trial(2, 0.87, 13.0),  # 1 is better and smaller
    trial(3, 0.80, 6.0),
    trial(4, 0.70, 3.0),
    trial(5, 0.0, 0.0, measures={}, failed="no such student"),
]


def bounds(**budget: float) -> dict[str, tuple[float, bool]]:
    return selection.bounds(study(budget=budget).budget, 0.9)


def test_before_training_a_student_may_lose_what_training_wins_back() -> None:
    asked = bounds(size_mb=12.5, metric_drop=0.02)
    loose = selection.before_training(asked, {"metric": 0.9, "size_mb": 20.0})
    assert loose["size_mb"] == asked["size_mb"]
    assert loose["metric"][0] == pytest.approx(0.8)
    # A bound above the recipe as it is stays where it is.
    assert selection.before_training({"metric": (0.95, True)}, {"metric": 0.9}) == {"metric": (0.95, True)}


def test_the_front_is_whom_nobody_beats() -> None:
    assert [one.number for one in selection.front(TRIALS, ("metric", "size_mb"))] == [0, 1, 3, 4]
    assert [one.number for one in selection.front(TRIALS, ("metric",))] == [0]
    assert selection.front([TRIALS[-1]], ("metric",)) == []
    twins = [trial(0, 0.9, 1.0), trial(1, 0.9, 1.0)]
    assert selection.front(twins, ("metric", "size_mb")) == twins, "equal ones beat nobody"


def test_who_keeps_the_budget_goes_on_first_and_then_the_nearest() -> None:
    ordered = selection.best(TRIALS, ("metric", "size_mb"), bounds(size_mb=12.5, metric=0.75), 5)
    assert {one.number for one in ordered[:2]} == {1, 3}
    assert [one.number for one in ordered[2:]] == [2, 0, 4] or [one.number for one in ordered[2:]] == [2, 4, 0]
    assert 5 not in [one.number for one in ordered], "a student that there is not"


def test_of_a_front_its_ends_come_first() -> None:
    crowd = [trial(0, 0.9, 20.0), trial(1, 0.895, 19.0), trial(2, 0.8, 10.0), trial(3, 0.5, 1.0)]
    ordered = [one.number for one in selection.best(crowd, ("metric", "size_mb"), {}, 4)]
    assert {*ordered[:2]} == {0, 3}
    assert ordered[2:] == [2, 1]


def test_the_drop_counts_from_the_recipe_as_it_is() -> None:
    assert bounds(metric_drop=0.02)["metric"][0] == pytest.approx(0.88)
    assert bounds(metric_drop=0.02, metric=0.89)["metric"] == (0.89, True)
    assert bounds(size_mb=5) == {"size_mb": (5.0, False)}


def test_the_answer_is_the_best_that_fits_and_says_what_each_bound_costs() -> None:
    found = answering.answer(study(), TRIALS, bounds(size_mb=12.5))
    assert (found.trial, found.fits, found.beyond) == (1, True, {})
    assert found.sentences == ["12.5 MB costs 2.00 points: 0.9000 at 20 MB, 0.8800 within it"]


def test_without_one_that_fits_it_is_the_nearest_and_what_is_out_of_reach() -> None:
    found = answering.answer(study(), TRIALS, bounds(size_mb=5, metric=0.8))
    assert not found.fits
    assert found.trial in (3, 4)
    assert found.sentences == [
        "no trial within the other bounds keeps a metric of at least 0.8: the best has 0.7000",
        "no trial within the other bounds keeps 5 MB: the nearest has 6 MB (metric 0.8000)",
    ]


def test_a_bound_of_quality_says_below_which_size_nobody_keeps_it() -> None:
    (said,) = answering.answer(study(), TRIALS, bounds(metric=0.79)).sentences
    assert said == "below 6 MB no trial keeps a metric of at least 0.79"


def test_a_file_comes_before_an_estimate_and_a_failed_one_is_no_answer() -> None:
    made = TRIALS[3].model_copy(update={"step": "files", "verdict": "passed"})
    failed = TRIALS[0].model_copy(update={"step": "files", "verdict": "failed"})
    assert answering.answer(study(), [*TRIALS, made, failed], {}).trial == 3
    assert answering.answer(study(), [TRIALS[5]], {}).trial is None


def test_a_file_that_failed_its_verification_is_no_answer_even_alone() -> None:
    failed = TRIALS[0].model_copy(update={"step": "files", "verdict": "failed"})
    assert answering.answer(study(), [failed, *TRIALS[1:]], {}).trial == 1
    (said,) = answering.answer(study(), [failed, *TRIALS[1:]], bounds(metric=0.89)).sentences
    assert said == "no trial within the other bounds keeps a metric of at least 0.89: the best has 0.8800"


def test_of_costs_alone_the_cheapest_one_that_keeps_the_quality_is_the_answer() -> None:
    cheapest = study(objectives=["size_mb"], budget={"metric_drop": 0.12})
    found = answering.answer(cheapest, TRIALS, selection.bounds(cheapest.budget, 0.9))
    assert (found.trial, found.fits) == (3, True)


def test_what_costs_are_said_of_all_trials_is_true_of_all_trials() -> None:
    rows = [(0.85, 5.9961, 9.0), (0.82, 8.0, 2.0), (0.79, 1234.5, 1.0)]
    every = [
        trial(number, metric, size, measures={"metric": metric, "size_mb": size, "latency_ms": ms})
        for number, (metric, size, ms) in enumerate(rows)
    ]
    # The first one keeps the metric with fewer MB, and is too slow.
    said = answering.answer(study(), every, bounds(metric=0.8, latency_ms=3.0)).sentences
    assert "below 8 MB no trial within the other bounds keeps a metric of at least 0.8" in said
    (said_alone,) = answering.answer(study(), every, bounds(metric=0.8)).sentences
    assert said_alone == "below 5.99 MB no trial keeps a metric of at least 0.8", "5.9961 is below 6"
    (large,) = answering.answer(study(), every[2:], bounds(size_mb=1000)).sentences
    assert large == "no trial within the other bounds keeps 1000 MB: the nearest has 1234 MB (metric 0.7900)"


# --- records -----------------------------------------------------------------------------------------------------


def test_of_a_trial_s_lines_the_last_counts_and_one_cut_short_none(tmp_path: Path) -> None:
    for one in (TRIALS[0], TRIALS[1], TRIALS[0].model_copy(update={"step": "files"})):
        records.append(tmp_path, one)
    with (tmp_path / records.TRIALS).open("a") as handle:
        handle.write(TRIALS[2].model_dump_json()[:50])
    found = records.read_trials(tmp_path)
    assert {number: one.step for number, one in found.items()} == {0: "files", 1: "compressed"}
    # The run that goes on writes behind it.
    records.append(tmp_path, TRIALS[3])
    records.append(tmp_path, TRIALS[4])
    assert {3, 4} <= {*records.read_trials(tmp_path)}, "no line is lost behind one that was cut short"


def test_words_of_an_error_and_broken_bytes_lose_no_trial(tmp_path: Path) -> None:
    strange = TRIALS[5].model_copy(update={"failed": "one\u2028two\x85three\x0cfour"})
    records.append(tmp_path, strange)
    with (tmp_path / records.TRIALS).open("ab") as handle:
        handle.write(b"\xff\xfe\n")
    records.append(tmp_path, TRIALS[1])
    assert records.read_trials(tmp_path) == {5: strange, 1: TRIALS[1]}


def test_a_record_with_a_range_is_read_again(tmp_path: Path) -> None:
    found = record([TRIALS[0]], Answer(trial=0, fits=True, beyond={}, sentences=[]))
    records.write(tmp_path, found)
    assert records.read(tmp_path) == found


def test_a_record_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="pocketbert study"):
        records.read(tmp_path)
    (tmp_path / records.RECORD).write_text("{}")
    with pytest.raises(ArtifactError, match="no record of a study"):
        records.read(tmp_path)


def test_the_page_leads_from_each_point_to_its_recipe(tmp_path: Path) -> None:
    made = TRIALS[1].model_copy(
        update={
            "step": "files",
            "drop": (0.02, 0.01, 0.03),
            "verdict": "passed",
            "measured": Measured(size_mb=12.0, latency_ms=2.0, times_base=2.0),
            "estimated": {"size_mb": 12.6},
        }
    )
    hostile = TRIALS[0].model_copy(update={"choice": {"prune.compute": "<script>alert(1)</script>"}})
    found = record(
        [hostile, made, *TRIALS[2:]], Answer(trial=1, fits=True, beyond={}, sentences=["6 MB costs a point"])
    )
    page.write(tmp_path, found)
    text = (tmp_path / page.PAGE).read_text()
    assert "<script>" not in text
    for number in (0, 1, 3, 4):
        assert f'id="tried-trial-{number}"' in text
        assert f'href="#tried-trial-{number}"' in text
        assert tomllib.loads((tmp_path / f"recipes/{number}.toml").read_text())["name"] == f"tried-{number}"
    assert "#tried-trial-2" not in text
    table = (tmp_path / page.FRONT).read_text()
    assert "Best within the budget: trial 1" in table
    assert "| [3](recipes/3.toml) |" in table
    assert "6 MB costs a point." in table
    assert "off by 5.0 % on average over 1 files" in table
    assert "Of 10 artifacts that the trials asked for, 4 were shared." in table
    best = (tmp_path / page.BEST).read_text()
    assert "2.00 times as fast as minilm's" in best
    assert "2.00 points less than minilm (1.00 to 3.00)" in best


def test_a_recipe_s_paths_lead_to_the_same_files_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "own.txt").write_text("a\n")
    values = {"corpus": ["../own.txt", "wikitext2", "v1.0"], "inside": {"file": "../own.txt"}, "hub": "hub:a/b@c"}
    moved = recipes.moved(values, tmp_path / "a", tmp_path)
    assert moved == {"corpus": ["own.txt", "wikitext2", "v1.0"], "inside": {"file": "own.txt"}, "hub": "hub:a/b@c"}


def test_paths_without_a_slash_and_recipes_are_moved_too_and_from_behind_a_link(tmp_path: Path) -> None:
    for name in ("a/student", "a/stsb", "a/mean", "real/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a/other.toml").touch()
    (tmp_path / "linked").symlink_to("real/deep")
    values = {
        "student": {"source": "student", "pooling": "mean"},
        "prune": {"calibration": ["stsb"]},
        "distil": {"teacher": "recipe:other.toml"},
    }
    moved = recipes.moved(values, tmp_path / "a", tmp_path / "linked")
    assert moved == {
        "student": {"source": "../../a/student", "pooling": "mean"},
        "prune": {"calibration": ["stsb"]},
        "distil": {"teacher": "recipe:../../a/other.toml"},
    }
    assert recipes.moved(moved, tmp_path / "linked", tmp_path)["student"]["source"] == "a/student"


def test_a_table_holds_any_value_and_a_metric_of_zero() -> None:
    nothing = Reported(dataset="rows", metric="spearman", fp32=0.9, drop=None, file=0.0)
    odd = trial(0, 0.9, 1.0, choice={"student.source": "a|b\nc"}, reported=nothing)
    found = record([odd], Answer(trial=0, fits=True, beyond={}, sentences=[]), machine="a\nname = 3")
    text = page.markdown(front.of(found, Path(), Path()))
    assert "student.source = a\\|b c |" in text
    assert "| 0.0000 |" in text
    assert tomllib.loads(recipes.stored(found, odd, Path(), Path()))["name"] == "tried-0"


# --- recommend ---------------------------------------------------------------------------------------------------


def files(trials: list[TrialRecord]) -> list[TrialRecord]:
    return [one if one.failed else one.model_copy(update={"step": "files", "verdict": "passed"}) for one in trials]


def test_a_recommendation_is_the_best_within_the_budget_of_all_studies() -> None:
    first = record(files(TRIALS), Answer(trial=0, fits=True, beyond={}, sentences=[]))
    better = record(files([trial(7, 0.895, 11.0)]), Answer(trial=7, fits=True, beyond={}, sentences=[]))
    found = recommending.recommend([first, better], "embedding", bounds(size_mb=12.5), "this machine")
    assert (found.trial.number, found.fits) == (7, True)
    found = recommending.recommend([first, better], "embedding", bounds(size_mb=1.0), "this machine")
    assert (found.trial.number, found.fits, found.beyond) == (4, False, {"size_mb": (3.0, 1.0)})


def test_a_latency_of_another_machine_is_held_to_no_bound() -> None:
    slow = trial(0, 0.9, 20.0, measures={"metric": 0.9, "size_mb": 20.0, "latency_ms": 9.0}, step="files")
    every = [record([slow], Answer(trial=0, fits=True, beyond={}, sentences=[]))]
    asked = bounds(latency_ms=1.0)
    assert recommending.recommend(every, "embedding", asked, "this machine").fits is False
    elsewhere = recommending.recommend(every, "embedding", asked, "another one")
    assert (elsewhere.fits, elsewhere.elsewhere) == (True, True)


def test_a_bound_on_what_no_study_measured_is_not_kept() -> None:
    plain = record(files(TRIALS), Answer(trial=0, fits=True, beyond={}, sentences=[]))
    found = recommending.recommend([plain], "embedding", bounds(latency_ms=1.0), "this machine")
    assert (found.fits, found.beyond, found.unmeasured) == (False, {}, ("latency_ms",))
    timed = trial(3, 0.5, 9.0, measures={"metric": 0.5, "size_mb": 9.0, "latency_ms": 0.9}, step="files")
    measured = record([timed], Answer(trial=3, fits=True, beyond={}, sentences=[]))
    elsewhere = measured.model_copy(update={"machine": "another one"})
    found = recommending.recommend([plain, elsewhere, measured], "embedding", bounds(latency_ms=1.0), "this machine")
    assert (found.record, found.fits, found.elsewhere) == (measured, True, False), "judged comes before not judged"


def test_a_file_comes_before_an_estimate_and_one_that_fits_before_both() -> None:
    sure, maybe = files([trial(0, 0.8, 5.0)])[0], trial(1, 0.85, 2.0)
    one = record([sure], Answer(trial=0, fits=True, beyond={}, sentences=[]))
    other = record([maybe], Answer(trial=1, fits=True, beyond={}, sentences=[]), judged_on="other rows")
    found = recommending.recommend([one, other], "embedding", bounds(size_mb=6.0), "this machine")
    assert (found.trial, found.others) == (sure, ("tried",))
    both = record([sure, maybe], Answer(trial=0, fits=True, beyond={}, sentences=[]))
    found = recommending.recommend([both], "embedding", bounds(size_mb=3.0), "this machine")
    assert (found.trial, found.fits) == (maybe, True)
    failed = sure.model_copy(update={"verdict": "failed"})
    spoilt = record([failed], Answer(trial=0, fits=True, beyond={}, sentences=[]))
    with pytest.raises(InputError, match="no study has found"):
        recommending.recommend([spoilt], "embedding", {}, "this machine")


def test_a_recipe_beside_is_named_unless_it_is_worse_on_the_report_s_data_or_costs_more() -> None:
    def reported(value: float) -> Reported:
        return Reported(dataset="stsb", metric="spearman", fp32=0.5, drop=None, file=value)

    def ready(name: str, size: float, value: float) -> TrialRecord:
        (one,) = files([trial(records.BESIDE, 0.1, size, choice={"recipe": name})])
        return one.model_copy(update={"reported": reported(value)})

    (best,) = files([trial(0, 0.8, 5.0)])
    beside = [ready("better", 5.0, 0.86), ready("worse", 5.0, 0.84), ready("larger", 7.0, 0.9)]
    judged = best.model_copy(update={"reported": reported(0.85)})
    for one, named in ((judged, ["better"]), (best, ["better", "worse"])):
        every = [record([one], Answer(trial=0, fits=True, beyond={}, sentences=[]), beside=beside)]
        found = recommending.recommend(every, "embedding", bounds(size_mb=6.0, metric=0.7), "this machine")
        assert [other.choice["recipe"] for other in found.ready] == named
    unknown = {**bounds(size_mb=6.0), "macs_m": (9.0, False)}
    assert not recommending.recommend(every, "embedding", unknown, "this machine").ready, "no measure keeps no bound"


def test_a_record_that_lacks_a_recipe_is_damaged(tmp_path: Path) -> None:
    found = record(TRIALS, Answer(trial=0, fits=True, beyond={}, sentences=[]))
    records.write(tmp_path, found.model_copy(update={"recipes": {}}))
    with pytest.raises(ArtifactError, match="lacks the recipe of trial 0"):
        records.read(tmp_path)


def test_without_a_study_for_the_task_it_says_how_to_get_one() -> None:
    every = [record(TRIALS, Answer(trial=0, fits=True, beyond={}, sentences=[]))]
    with pytest.raises(InputError, match=r"task ner; there are records for embedding.*pocketbert study"):
        recommending.recommend(every, "ner", {}, "this machine")
    with pytest.raises(InputError, match="no task at all"):
        recommending.recommend([], "ner", {}, "this machine")


def test_the_record_that_comes_with_the_package_answers(tmp_path: Path) -> None:
    every = [one for one, _ in records.known(tmp_path, (), print)]
    found = recommending.recommend(every, "embedding", bounds(size_mb=9), "this machine")
    assert found.fits
    assert found.trial.measured
    assert found.trial.measured.size_mb <= 9
    assert found.trial.verdict == "passed"
    assert loading.checked(found.record.recipes[found.trial.number], tmp_path / "recipe.toml").task == "embedding"


def test_a_damaged_record_among_others_is_left_out_and_said(tmp_path: Path) -> None:
    place = tmp_path / records.FOLDER / "mine"
    place.mkdir(parents=True)
    (place / records.RECORD).write_text("{")
    said: list[str] = []
    assert records.known(tmp_path, (), said.append)
    assert said == [f"left out: {place / records.RECORD} is no record of a study: 1 validation error for Record."]
    with pytest.raises(ArtifactError, match="is no record of a study"):
        records.known(tmp_path, (place,), said.append)


def test_a_front_says_what_each_speed_costs() -> None:
    def file(number: int, times: float, loss: float) -> TrialRecord:
        measured = Measured(size_mb=9.0, latency_ms=1.0, times_base=times)
        return trial(number, 0.9 - loss, 9.0, step="files", measured=measured, drop=(loss, 0.0, 2 * loss))

    answer = Answer(trial=1, fits=True, beyond={}, sentences=[])
    found = record([file(0, 2.1, 0.001), file(1, 4.4, 0.005), file(2, 4.1, 0.02), trial(3, 0.9, 5.0)], answer)
    assert {times: one.number for times, one in front.by_speed(found).items()} == {2: 0, 3: 1, 4: 1}
    lead = front.of(found, Path(), Path()).lead
    assert any("at least 4 × as fast loses 0.50 (0.00 to 1.00) points (trial 1)" in line for line in lead)
