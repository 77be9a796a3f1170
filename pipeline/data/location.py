"""Where a file is that a recipe names: a path, or a file of a hub repository at one commit.

The hub's library is imported when a hub file is asked for, and not before.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import InputError, PipelineError

_HUB_FILE = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})/([\w./-]+)")


def locate(name: str, recipe_file: Path) -> Path:
    """Return where a data file of a recipe is.

    Args:
        name: a path, or `hub:owner/name@<40-digit commit>/file` of a dataset, which is looked up in the local hub
            cache and downloaded if it is not there.
        recipe_file: a relative path starts at its folder.

    Raises:
        InputError: the hub's name is malformed, or its file cannot be had. A plain file may still be absent.
    """
    return _hub_file(name) if name.startswith("hub:") else recipe_file.parent / os.path.expanduser(name)


def _hub_file(name: str) -> Path:
    match = _HUB_FILE.fullmatch(name)
    if match is None:
        raise InputError(
            f"{name} is not hub:owner/name@<40-digit commit>/file; a branch or tag can move, so it is not taken."
        )
    from huggingface_hub import hf_hub_download

    repository, revision, file = match.groups()
    requested = f"{file} of dataset {repository}@{revision[:8]}"
    with hub_errors(requested, InputError, "and name the file in the recipe"):
        return Path(hf_hub_download(repository, file, revision=revision, repo_type="dataset"))


@contextmanager
def hub_errors(requested: str, kind: type[PipelineError], remedy: str) -> Iterator[None]:
    """Turn the errors of the hub's library into one of ours.

    Args:
        requested: what is downloaded, with its commit.
        kind: the error to raise.
        remedy: what a user may name instead, for the message.

    Raises:
        PipelineError: of that kind; the file is neither in the local cache nor to be downloaded.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise kind(
            f"{requested} is not in the local hub cache and cannot be downloaded (offline). "
            f"Download it elsewhere, {remedy}."
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise kind(f"{requested} cannot be downloaded: {str(error).splitlines()[0]}") from error
