"""What the Hugging Face hub refuses, in words; nothing of it is imported before it is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import PipelineError


@contextmanager
def asked(what: str, kind: type[PipelineError], instead: str) -> Iterator[None]:
    """Turn the hub's errors into one of ours.

    Args:
        what: is asked for, with its commit.
        kind: of the error.
        instead: what a user may name in its place.

    Raises:
        PipelineError: of that kind: it is neither in the local cache nor to be downloaded.
    """
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except (OfflineModeIsEnabled, LocalEntryNotFoundError) as error:
        raise kind(
            f"{what} is not in the local hub cache and cannot be downloaded (offline). "
            f"Download it elsewhere, {instead}."
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise kind(f"{what} cannot be downloaded: {str(error).splitlines()[0]}") from error
