"""`pocketbert push`: what a bundle holds and says, what is never in one, and a real upload to a hub on this machine."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Outcome, TinyLine, run_command
from hub_server import READER, TOKEN, Hub, Repository, serving

import pipeline
from pipeline import artifact, formats, tasks
from pipeline.convert.targets import choose_targets
from pipeline.errors import ArtifactError, GateFailed, InputError
from pipeline.formats.signature import Function
from pipeline.recipe import loading as recipe
from pipeline.ship import bundle, card, push
from pipeline.ship.record import BUNDLE, Bundle, BundledStudent, read_bundle
from pipeline.verify import stage as verify

PLACE = "me/tiny-phone"
PASSED = ["litert-fp32", "executorch-fp32"]


@pytest.fixture
def line(tiny_line: TinyLine, tmp_path: Path) -> Iterator[TinyLine]:
    """A copy of the tiny line, to change; removed afterwards."""
    yield tiny_line.copy(tmp_path)
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def whole(thorough_line: TinyLine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyLine]:
    """A copy of the thorough line with its bundle, to look at only."""
    root = tmp_path_factory.mktemp("whole")
    copy = thorough_line.copy(root)
    made(copy)
    yield copy
    shutil.rmtree(root)


def made(line: TinyLine, *targets: str, allow_not_run: bool = False) -> tuple[Path, Bundle]:
    """Write the bundle of a line, in this process."""
    parsed, _ = recipe.read_recipe(str(line.recipe))
    chosen = choose_targets(parsed, targets)
    return bundle.make(
        parsed,
        line.folder,
        chosen,
        PLACE,
        explicit=bool(targets),
        allow_not_run=allow_not_run,
        outdated={},
        tell=lambda text: None,
    )


def rewrite(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a parity record and make its artifact whole again."""
    path = place / verify.PARITY
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))
    manifest = artifact.read_manifest(place).model_copy(update={"files": artifact.list_files(place)})
    (place / artifact.MANIFEST).write_text(manifest.model_dump_json())


# --- the bundle --------------------------------------------------------------------------------------------------


def test_a_bundle_holds_what_passed_and_lists_every_byte(whole):
    line = whole
    place, bundle = made(line)
    assert [member.target for member in bundle.targets] == PASSED
    assert bundle.left_out == {"litert-int8_dynamic": "its verdict is failed (min_sqnr_db)"}
    on_disk = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    listed = {entry.path: entry for entry in bundle.files}
    # The artifact's own manifest and mark stay here: they are not uploaded.
    assert on_disk == set(listed) | {BUNDLE, artifact.MANIFEST, artifact.ORIGIN}
    for name, entry in listed.items():
        data = (place / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry.sha256, entry.bytes)
    for member in bundle.targets:
        names = {path.name for path in (place / member.target).iterdir()}
        assert names >= {member.file, "tokenizer.json", "signature.json", "golden.json", "parity.json", "manifest.json"}
        own = [entry.bytes for entry in bundle.files if entry.path.startswith(f"{member.target}/")]
        assert member.bytes == sum(own)


def test_a_target_of_a_bundle_opens_and_gives_the_same_bytes(line):
    place, _ = made(line)
    text = ["A man is playing a guitar."]
    model, original = pipeline.load(place / "executorch-fp32"), pipeline.load(line.folder / "executorch-fp32")
    assert model.predict(text)[0].vector.tobytes() == original.predict(text)[0].vector.tobytes()
    (place / "executorch-fp32" / "added").write_text("x")
    with pytest.raises(ArtifactError, match="added is not in the manifest"):
        pipeline.load(place / "executorch-fp32")


def test_a_bundle_is_kept_until_something_changes(line):
    place, _ = made(line)
    before = (place / BUNDLE).stat().st_ino
    assert (made(line)[0] / BUNDLE).stat().st_ino == before
    rewrite(line.folder / "litert-fp32" / "parity", lambda values: values["reasons"].append("seen again"))
    _, bundle = made(line)
    assert "seen again" in bundle.targets[0].reasons
    parity = place / "litert-fp32" / "parity.json"
    assert "seen again" in parity.read_text()


@pytest.mark.parametrize("name", ["README.md", "litert-fp32/manifest.json", "litert-fp32/model.tflite"])
def test_a_bundle_that_was_changed_is_made_again(name, line):
    place, bundle = made(line)
    before = (place / name).read_bytes()
    (place / name).write_bytes(b"{}")
    (place / "notes.txt").write_text("mine")
    assert made(line)[1] == bundle
    assert (place / name).read_bytes() == before
    assert not (place / "notes.txt").exists()


def test_a_target_that_failed_is_left_out_next_time(line):
    place, _ = made(line)
    rewrite(line.folder / "litert-fp32" / "parity", lambda values: values.update(verdict="failed"))
    _, bundle = made(line)
    assert [member.target for member in bundle.targets] == ["executorch-fp32"]
    assert not (place / "litert-fp32").exists()


def not_run(values: dict[str, Any]) -> None:
    values.update(verdict="not_run", reasons=["no op foo"], measures=None, evaluator=None, gates=[], datasets=[])


def test_what_was_not_run_needs_the_flag_and_says_so(line):
    rewrite(line.folder / "litert-fp32" / "parity", not_run)
    _, bundle = made(line)
    assert bundle.left_out["litert-fp32"].startswith("it was not run")
    with pytest.raises(GateFailed, match=r"litert-fp32 is not pushed: it was not run.*no op foo"):
        made(line, "litert:fp32")
    place, bundle = made(line, allow_not_run=True)
    assert bundle.targets[0].verdict == "not_run"
    assert "**`litert-fp32` was not run**: no op foo" in (place / "README.md").read_text()
    place, bundle = made(line, "litert:fp32", allow_not_run=True)
    assert [member.verdict for member in bundle.targets] == ["not_run"]


def test_nothing_that_may_go_is_a_failed_gate(line):
    with pytest.raises(GateFailed, match=r"litert-int8_dynamic is not pushed: its verdict is failed \(min_sqnr_db\); "):
        made(line, "litert:int8_dynamic")
    for target in PASSED:
        rewrite(line.folder / target / "parity", lambda values: values.update(verdict="failed"))
    with pytest.raises(GateFailed, match="no target of tiny can be pushed"):
        made(line)
    assert not (line.folder / bundle.FOLDER).exists()


def change_model(line: TinyLine) -> None:
    model = line.folder / "litert-fp32" / "model"
    (model / "labels.txt").write_text("new")
    manifest = artifact.read_manifest(model).model_copy(update={"files": artifact.list_files(model)})
    (model / artifact.MANIFEST).write_text(manifest.model_dump_json())


def change_gates(line: TinyLine) -> None:
    line.recipe.write_text(line.recipe.read_text() + "[verify.gates.fp32]\nmin_sqnr_db = 71\n")


def change_task(line: TinyLine) -> None:
    line.recipe.write_text(line.recipe.read_text().replace('task = "embedding"', 'task = "classification"'))


def damage(line: TinyLine) -> None:
    (line.folder / "litert-fp32" / "model" / "model.tflite").write_bytes(b"TFL3")


def half_made(line: TinyLine) -> None:
    (line.folder / "student" / artifact.MANIFEST).unlink()


def never_made(line: TinyLine) -> None:
    for path in line.folder.glob("*-*/model"):
        path.unlink()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (change_model, "changed after it was verified"),
        (change_gates, "judged by other gates"),
        (change_task, "was made for task embedding"),
        (damage, "was changed after it was made"),
        (half_made, "not a finished artifact"),
        (never_made, "it was not made; run `pocketbert run`"),
        (lambda line: shutil.rmtree(line.folder), "does not exist; make the recipe's targets"),
    ],
)
def test_what_does_not_belong_together_is_not_bundled(change, words, line):
    change(line)
    with pytest.raises(ArtifactError, match=re.escape(words)):
        made(line)


# --- the card ----------------------------------------------------------------------------------------------------


def test_the_card_has_front_matter_and_every_figure_of_the_records(whole):
    line = whole
    from huggingface_hub import ModelCard

    place, bundle = made(line)
    text = (place / "README.md").read_text()
    front = ModelCard.load(place / "README.md").data.to_dict()
    assert front["pipeline_tag"] == "sentence-similarity"
    assert front["library_name"] == "pocketbert"
    assert set(front["tags"]) >= {"litert", "executorch", "bert"}
    # A local folder is no repository on the hub, and states no licence.
    assert not {"license", "base_model"} & set(front)
    assert "the checkpoint states none" in text
    assert "**The weights are random.**" in text
    for member in bundle.targets:
        parity = verify.read_parity(line.folder / member.target / "parity")
        assert parity.measures
        assert parity.evaluator
        assert f"| `{member.target}` | passed | {parity.measures.rows} |" in text
        assert f"{parity.file_bytes / 1e6:.1f}" in text
        assert f"{parity.measures.worst_score:.5f}" in text
        assert parity.evaluator in text
    assert "Not here: `litert-int8_dynamic`, its verdict is failed (min_sqnr_db)." in text
    assert "Not measured" in text
    assert f'snapshot_download("{PLACE}", allow_patterns="litert-fp32/*"' in text
    for name in (str(line.build), str(line.recipe.parent), "None", "Undefined"):
        assert name not in text
    tables = [block.split("\n") for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)]
    assert len(tables) == 3
    assert all(len({row.replace("\\|", "").count("|") for row in table}) == 1 for table in (t[:-1] for t in tables))


def timed(line: TinyLine) -> Outcome:
    """Time the copy of the line on the host, shortly, and return what the command left."""
    brief = {"rounds": 2, "block_ms": 0, "texts": 4, "text_passes": 2}
    settings = "".join(f"{key} = {value}\n" for key, value in brief.items())
    line.recipe.write_text(line.recipe.read_text() + f"[benchmark]\n{settings}")
    return run_command("benchmark", line.recipe, "--build", line.build, "--json", cwd=line.recipe.parent)


@pytest.mark.full
def test_times_are_those_of_exactly_these_files(line):
    outcome = timed(line)
    assert outcome.rc == 1, outcome.stderr
    place, _ = made(line)
    speed = (place / "README.md").read_text().split("## Speed")[1].split("\n## ")[0]
    assert "on a computer, not on a phone" in speed
    assert "`litert-fp32` | 1 |" in speed
    assert "the original | 1 |" in speed
    assert "int8_dynamic" not in speed
    # The file is another one now; its time is not this file's time.
    change_model(line)
    judged = line.folder / "litert-fp32" / "parity"
    manifest = artifact.read_manifest(judged)
    inputs = manifest.inputs | {"model": artifact.load(line.folder / "litert-fp32" / "model").digest}
    (judged / artifact.MANIFEST).write_text(manifest.model_copy(update={"inputs": inputs}).model_dump_json())
    made(line)
    speed = (place / "README.md").read_text().split("## Speed")[1].split("\n## ")[0]
    assert "litert-fp32" not in speed
    assert "`executorch-fp32` | 1 |" in speed


def test_the_hub_has_a_name_for_every_task():
    assert set(tasks.TASKS) <= set(card.PIPELINE_TAGS)


def student_of(**changes: Any) -> Bundle:
    values = {"origin": "o/n@" + "a" * 40, "licence": "Apache-2.0", "digest": "", "model_type": "bert"}
    student = BundledStudent(**(values | {"parameters": 1, "random_weights": False} | changes))
    return Bundle(pocketbert="1", recipe="r", task="classification", student=student, targets=[], left_out={}, files=[])


def test_front_matter_says_what_is_known_and_no_more():
    known = card.front_matter(student_of())
    assert "license: apache-2.0" in known
    assert "base_model: o/n\n" in known + "\n"
    assert "license" not in card.front_matter(student_of(licence=None))
    tuned = card.front_matter(student_of(origin="o/n@" + "a" * 40 + ", fine-tuned on sst2, pruned"))
    assert "base_model: o/n\n" in tuned + "\n"
    assert "base_model" not in card.front_matter(student_of(origin="a folder"))


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [([(8, 8), (32, 32), (64, 64)], (32, 32)), ([(8, 8), (16, 16)], (16, 16)), ([(3, 128)], (128, 32))],
)
def test_snippets_call_a_length_that_the_file_has(bounds, expected):
    functions = [Function(name="f", min_length=low, max_length=high, inputs=(), outputs=()) for low, high in bounds]
    function, length = card.call(functions)
    assert (function.max_length, length) == expected


def test_every_format_has_a_snippet():
    text = (card.TEMPLATES / card.TEMPLATE).read_text()
    for name in formats.NAMES:
        assert f'{{% if "{name}" in calls %}}' in text


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "../x", "a b/c", "a/..", "", "-a/b", "a/b--c"])
def test_a_place_that_the_hub_cannot_have_is_refused(name):
    with pytest.raises(InputError, match="is not owner/name"):
        push.check_names(name, "main")


@pytest.mark.parametrize("name", ["", "a b", "..", "-x"])
def test_a_branch_that_cannot_be_is_refused(name):
    with pytest.raises(InputError, match="not the name of a branch"):
        push.check_names(PLACE, name)


# --- the upload, with the real client ----------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as served:
        yield served


def pushed(line: TinyLine, hub_: Hub, *options: str, token: str | None = TOKEN, **extra: str) -> Outcome:
    """Run the real command against a hub on this machine."""
    home = line.recipe.parent / "hf"
    given = {"HF_ENDPOINT": hub_.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(home)}
    given |= {"HF_TOKEN": token} if token else {}
    command: tuple[str | Path, ...] = ("push", line.recipe, PLACE, "--build", line.build, "--json", *options)
    return run_command(*command, cwd=line.recipe.parent, **(given | extra))


def test_a_dry_run_uploads_nothing_and_says_what_it_would(whole, hub, command_here):
    line = whole
    outcome = pushed(line, hub)
    assert outcome.rc == 0, outcome.stderr
    document = outcome.document
    place = line.folder / bundle.FOLDER
    assert document["commit_url"] is None
    assert document["bytes"] == sum((place / name).stat().st_size for name in document["files"])
    assert [row["target"] for row in document["targets"]] == PASSED
    assert hub.repositories == {}
    said = command_here("push", line.recipe, PLACE, "--build", line.build)
    assert (said.rc, said.stderr) == (0, "")
    assert f"dry run: nothing was uploaded to {PLACE}@main" in said.stdout
    assert f"{document['bytes'] / 1e6:.1f} MB" in said.stdout
    assert "litert-int8_dynamic left out: its verdict is failed" in said.stdout


def test_an_upload_is_one_commit_of_exactly_the_bundle(whole, hub):
    line = whole
    stale = {
        "litert-fp16/model.tflite": b"old",
        "litert-fp32/old.txt": b"old",
        "notes.md": b"mine",
        ".gitattributes": b"",
    }
    hub.repositories[PLACE] = Repository(private=False, branches={"main": stale})
    outcome = pushed(line, hub, "--no-dry-run")
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    repository = hub.repositories[PLACE]
    assert len(repository.commits) == 1
    place = line.folder / bundle.FOLDER
    there = repository.branches["main"]
    assert set(there) == set(outcome.document["files"]) | {"notes.md", ".gitattributes"}
    assert outcome.document["deleted"] == ["litert-fp16/model.tflite", "litert-fp32/old.txt"]
    for name in outcome.document["files"]:
        assert there[name] == (place / name).read_bytes()
    assert set(outcome.document["files"]) == {entry.path for entry in read_bundle(place).files} | {BUNDLE}
    assert any(hashlib.sha256(there["litert-fp32/model.tflite"]).hexdigest() == name for name in hub.large)
    assert outcome.document["commit_url"].startswith(hub.endpoint)


def test_create_makes_a_private_repository_and_a_branch(whole, hub):
    line = whole
    outcome = pushed(line, hub, "--no-dry-run", "--create", "--private", "--revision", "phones")
    assert outcome.rc == 0, outcome.stdout + outcome.stderr
    repository = hub.repositories[PLACE]
    assert repository.private
    assert repository.branches["main"] == {}
    assert BUNDLE in repository.branches["phones"]


@pytest.fixture
def one_bundle(whole: TinyLine) -> tuple[push.PushedBundle, Bundle]:
    place, bundle = made(whole)
    return push.PushedBundle.of(place, bundle, PLACE, "main"), bundle


@pytest.fixture
def client(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the real client up for the hub on this machine."""
    from huggingface_hub import constants

    def set_up(*, token: str | None = TOKEN, endpoint: str = hub.endpoint, offline: bool = False) -> None:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
        monkeypatch.setenv("HF_TOKEN", token or "")

    return set_up


@pytest.mark.parametrize(
    ("options", "there", "words"),
    [
        ({"token": None}, True, "no Hugging Face token was found; run `hf auth login`"),
        ({"token": "hf_wrong"}, True, "refused the token"),
        ({"token": READER}, True, "the token may not write to me/tiny-phone"),
        ({}, False, "me/tiny-phone does not exist on http://127.0.0.1"),
        ({"offline": True}, True, "HF_HUB_OFFLINE is set"),
        ({"endpoint": "http://127.0.0.1:9"}, True, "http://127.0.0.1:9 cannot be reached"),
    ],
)
def test_what_stops_an_upload_is_one_line(options, there, words, one_bundle, client, hub):
    if there:
        hub.repositories[PLACE] = Repository(private=False)
    client(**options)
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        push.upload(*one_bundle, private=False, create=False)
    assert "\n" not in str(caught.value)
    assert not there or hub.repositories[PLACE].commits == []


def test_a_public_repository_is_not_taken_for_a_private_one(one_bundle, client, hub):
    hub.repositories[PLACE] = Repository(private=False)
    client()
    with pytest.raises(InputError, match="is public, and --private was asked for"):
        push.upload(*one_bundle, private=True, create=True)
    assert hub.repositories[PLACE].commits == []


def test_an_absent_branch_and_a_refused_card_are_said(one_bundle, client, hub):
    hub.repositories[PLACE] = Repository(private=False)
    client()
    elsewhere = one_bundle[0].model_copy(update={"revision": "phones"})
    with pytest.raises(InputError, match="has no branch phones; --create makes it"):
        push.upload(elsewhere, one_bundle[1], private=False, create=False)
    hub.bad_card = True
    with pytest.raises(InputError, match=r'did not accept the bundle: .*"license" must be one of a list'):
        push.upload(*one_bundle, private=False, create=False)
    assert hub.repositories[PLACE].commits == []


def test_what_is_uploaded_was_verified_thoroughly(line, client):
    place, bundle = made(line)
    client()
    with pytest.raises(InputError, match=r"litert-fp32, executorch-fp32: .* Run `pocketbert verify tiny --thorough`"):
        push.upload(push.PushedBundle.of(place, bundle, PLACE, "main"), bundle, private=False, create=False)


def test_a_failed_target_is_not_uploaded_even_if_a_bundle_lists_it(one_bundle, client):
    client()
    member = one_bundle[1].targets[0].model_copy(update={"verdict": "failed"})
    with pytest.raises(GateFailed, match="holds a failed target"):
        push.upload(one_bundle[0], one_bundle[1].model_copy(update={"targets": [member]}), private=False, create=False)
