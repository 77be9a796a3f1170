"""Where a file is that a recipe names: a path, or a file of a hub repository at one commit.

The hub's library is imported when a hub file is asked for, and not before.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.errors import InputError, PipelineError

HUB_SECONDS = 10.0
"""How long the Hub may think about a short question."""
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

    advice = f"Download it elsewhere, {remedy}."
    try:
        yield
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise kind(f"{requested} is not in the local hub cache and cannot be downloaded (offline). {advice}") from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise kind(f"{requested} cannot be downloaded: {str(error).splitlines()[0]}") from error
    except connection_error() as error:
        raise kind(
            f"{requested} is not in the local hub cache, and the Hub does not answer ({error}). {advice}"
        ) from error


def cache_folder(repository: str) -> Path:
    """Return the folder of a model's repository in the local hub cache, which has `refs/` and `snapshots/`."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model")


def hub_answers(repository: str) -> bool:
    """Return whether the Hub answers a short question; its library asks an absent Hub again for half a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        HfApi().model_info(repository, timeout=HUB_SECONDS)
    except (HfHubHTTPError, ValueError):
        # It answers, and what it says the download says again.
        return True
    except (OfflineModeIsEnabled, OSError, connection_error()):
        return False
    return True


def connection_error() -> type[Exception]:
    """Return the base class of the errors of the hub client's HTTP library, which differs between its versions."""
    from huggingface_hub.errors import HfHubHTTPError

    return next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
