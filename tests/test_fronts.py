"""The pages of fronts are made of their records, and each recipe that they link is one."""

import pytest

from benchmarks import fronts
from pipeline.fronts import page
from pipeline.planning.branches import branch_for
from pipeline.recipe import loading


def test_the_pages_are_made_of_the_records_at_hand() -> None:
    found = fronts.pages()
    assert {*found} == {"FRONT.md", "TASKS.md"}
    for file, lines in found.items():
        assert (fronts.FOLDER / file).read_text(encoding="utf-8") == "\n".join(lines) + "\n"


@pytest.mark.parametrize("subject", fronts.SUBJECTS, ids=lambda one: one.name)
def test_a_recipe_of_a_front_learns_from_no_row_that_trials_are_judged_by(subject: fronts.Subject) -> None:
    found = sorted((subject.folder / page.RECIPES).glob("*.toml"))
    assert found
    for file in found:
        branch = branch_for(*loading.read_recipe(str(file)))
        assert subject.shipped or {one.file.parent.name for one in branch.before.values()} == {"studies"}
        assert branch.recipe.distil is None or branch.recipe.distil.held_out
