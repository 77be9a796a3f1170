"""The page of tasks' fronts is made of its records, and each recipe that it links is one."""

from benchmarks import task_fronts
from pipeline.fronts import page
from pipeline.planning.branches import branch_for
from pipeline.recipe import loading


def test_the_page_is_made_of_the_records_at_hand() -> None:
    assert task_fronts.PAGE.read_text(encoding="utf-8") == "\n".join(task_fronts._page()) + "\n"


def test_a_recipe_of_the_front_begins_with_the_teacher_beside_the_study() -> None:
    found = sorted(task_fronts.RESULTS.glob(f"*/{page.RECIPES}/*.toml"))
    assert {file.parts[-3] for file in found} == {*task_fronts.STUDIES}
    for file in found:
        branch = branch_for(*loading.read_recipe(str(file)))
        assert {one.file.parent.name for one in branch.before.values()} == {"studies"}
        assert branch.recipe.distil is None or branch.recipe.distil.held_out
