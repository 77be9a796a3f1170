"""Push: upload a bundle to the Hugging Face Hub in one commit, or list the files of such an upload."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict

from pipeline.data.location import connection_error
from pipeline.errors import GateFailed, InputError, PipelineError
from pipeline.schemes import BACKENDS, SCHEMES
from pipeline.ship.record import Bundle, BundledTarget, check_thorough, sizes

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_BRANCH = re.compile(r"[\w][\w./-]{0,200}")


class PushedBundle(BaseModel):
    """A bundle, and where it went or would go."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    folder: str
    repository: str
    revision: str
    files: dict[str, int]
    """Bytes by path in the repository."""
    bytes: int
    targets: list[BundledTarget]
    left_out: dict[str, str]
    """Targets of the recipe that are not in the bundle, with the reason."""
    deleted: list[str] = []
    """Files of earlier bundles that are gone from the repository now."""
    commit_url: str | None = None
    """None where nothing was uploaded."""

    @classmethod
    def of(cls, folder: Path, bundle: Bundle, repository: str, revision: str) -> Self:
        """Return the record of an upload before it happens: place, files and sizes."""
        files = sizes(folder, bundle)
        return cls(
            folder=str(folder),
            repository=repository,
            revision=revision,
            files=files,
            bytes=sum(files.values()),
            targets=bundle.targets,
            left_out=bundle.left_out,
        )

    @property
    def place(self) -> str:
        """Repository and branch, as people write them."""
        return f"{self.repository}@{self.revision}"


def check_names(repository: str, revision: str) -> None:
    """Refuse names that the Hub cannot have, before anything is made.

    Raises:
        InputError: the repository is not owner/name, or the branch is no branch's name.
    """
    if not _REPOSITORY.fullmatch(repository) or ".." in repository or "--" in repository:
        raise InputError(
            f"repository {repository!r} is not owner/name, with letters, digits, dot, dash and underscore."
        )
    if not _BRANCH.fullmatch(revision) or ".." in revision:
        raise InputError(f"--revision {revision!r} is not the name of a branch.")


def upload(pushed: PushedBundle, bundle: Bundle, *, private: bool, create: bool) -> PushedBundle:
    """Upload a bundle in one commit; folders of targets that are no longer in it are deleted in the same commit.

    Args:
        pushed: what to upload, and where.
        bundle: its manifest; nothing else in the folder is uploaded.
        private: refuse a repository that everybody can read.
        create: make the repository or the branch where it is absent.

    Raises:
        InputError: a verdict that is not thorough, no token, a refused token, no such repository or branch, a public
            repository, or no network.
        GateFailed: the bundle has a target whose verdict is failed.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    if any(member.verdict == "failed" for member in bundle.targets):
        raise GateFailed("the bundle holds a failed target; it is not uploaded.")
    check_thorough(bundle.recipe, {member.target: member.thorough for member in bundle.targets}, "uploaded")
    if get_token() is None:
        raise InputError(
            "no Hugging Face token was found; run `hf auth login`, or set HF_TOKEN to a token that can write."
        )
    api = HfApi(library_name="pocketbert")
    with _one_line(pushed, api.endpoint):
        if create:
            api.create_repo(pushed.repository, private=private, exist_ok=True)
        # Asked first: unlike what comes later, the client does not try this again for half a minute.
        found = api.model_info(pushed.repository)
        if private and not found.private:
            raise InputError(f"{pushed.repository} is public, and --private was asked for; nothing was uploaded.")
        if create and pushed.revision != "main":
            api.create_branch(pushed.repository, branch=pushed.revision, exist_ok=True)
        gone = _left_behind(api, pushed)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path, Path(pushed.folder) / path) for path in pushed.files
        ]
        operations += [CommitOperationDelete(path, is_folder=False) for path in gone]
        names = ", ".join(member.target for member in bundle.targets)
        # Not upload_folder: with hf_xet it may split a slow upload into several commits, half a bundle each.
        done = api.create_commit(
            pushed.repository,
            operations,
            commit_message=f"{bundle.recipe}: {len(bundle.targets)} verified files by PocketBERT",
            commit_description=f"{names}\n\nStudent: {bundle.student.origin}",
            revision=pushed.revision,
        )
    return pushed.model_copy(update={"commit_url": str(done.commit_url), "deleted": gone})


def _left_behind(api: "HfApi", pushed: PushedBundle) -> list[str]:
    """Return the files of earlier bundles in targets' folders on the Hub that this bundle does not replace."""
    ours = {f"{backend}-{scheme}" for backend in BACKENDS for scheme in SCHEMES}
    there = api.list_repo_files(pushed.repository, revision=pushed.revision)
    return sorted(path for path in there if path.split("/")[0] in ours and "/" in path and path not in pushed.files)


@contextmanager
def _one_line(pushed: PushedBundle, endpoint: str) -> Iterator[None]:
    """Turn the client's exceptions into one-line errors; no upload is partial, since a commit is atomic."""
    from huggingface_hub import errors

    try:
        yield
    except PipelineError:
        raise
    except errors.OfflineModeIsEnabled as error:
        raise InputError("HF_HUB_OFFLINE is set; unset it to upload, or leave --no-dry-run out.") from error
    except errors.RevisionNotFoundError as error:
        raise InputError(
            f"{pushed.repository} has no branch {pushed.revision}; --create makes it, --revision names another."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(_absent(pushed, endpoint, error)) from error
    except errors.HfHubHTTPError as error:
        raise InputError(_refused(pushed, endpoint, error)) from error
    except (connection_error(), ConnectionError, TimeoutError) as error:
        reason = str(error).split("\n")[0] or type(error).__name__
        raise InputError(f"{endpoint} cannot be reached ({reason}); the bundle stays in {pushed.folder}.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{pushed.place} did not accept the bundle: {' '.join(str(error).split())[:300]}") from error


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    return getattr(response, "status_code", None)


_TOKEN_REFUSED = "refused the token: it is wrong or was revoked. Run `hf auth login`, or set HF_TOKEN to another."


def _absent(pushed: PushedBundle, endpoint: str, error: BaseException) -> str:
    if _status(error) == 401:
        return f"{endpoint} {_TOKEN_REFUSED}"
    return f"{pushed.repository} does not exist on {endpoint}, or the token may not see it; --create makes it."


def _refused(pushed: PushedBundle, endpoint: str, error: BaseException) -> str:
    status = _status(error)
    if status == 401:
        return f"{endpoint} {_TOKEN_REFUSED}"
    if status == 403:
        return f"the token may not write to {pushed.repository}; use one with write access to it."
    message = " ".join(str(error).split())[:300]
    return f"{endpoint} answered {status or 'nothing'} for {pushed.place}: {message}"
