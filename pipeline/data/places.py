"""Where a data file is: a path, or a file of a hub data set at one commit."""

import os
import re
from pathlib import Path

from pipeline.checkpoint import hub
from pipeline.errors import InputError

_HUB = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})/([\w./-]+)")


def find(name: str, recipe_file: Path) -> Path:
    """Return where a data file of a recipe is.

    Args:
        name: a path, or `hub:owner/name@<40-digit commit>/file` of a data set, which is looked up in the local hub
            cache and downloaded if it is not there.
        recipe_file: a relative path is meant from there.

    Raises:
        InputError: the name is of neither kind, or the hub's file cannot be had. A plain file may still be absent.
    """
    return _hub(name) if name.startswith("hub:") else recipe_file.parent / os.path.expanduser(name)


def _hub(name: str) -> Path:
    match = _HUB.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name} is not hub:owner/name@<40-digit commit>/file; a branch or tag can move, so it is not taken."
        )
    from huggingface_hub import hf_hub_download

    repository, revision, file = match.groups()
    asked = f"{file} of data set {repository}@{revision[:8]}"
    with hub.asked(asked, InputError, "and name the file in the recipe"):
        return Path(hf_hub_download(repository, file, revision=revision, repo_type="dataset"))
