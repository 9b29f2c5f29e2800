"""Sharing parts on a Hugging Face hub: the folder goes as it is, and comes back through the reader.

Nothing that is fetched is trusted: only the files a part can have are downloaded, to a folder that
is thrown away, and the part is made of them as of any folder: hashes, recipe, weights, probe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from dovetail.core.errors import FormatError, ShelfError, first_line
from dovetail.core.extras import need
from dovetail.parts.facts import FILES, is_part_folder
from dovetail.parts.part import Part, from_pretrained
from dovetail.shelf.store import Shelf


def push(
    part: Part | str,
    repo_id: str,
    *,
    shelf: Shelf | str | Path | None = None,
    token: str | None = None,
    private: bool = True,
) -> str:
    """Send a part to a repository of the hub, made when it is missing; returns its address.

    Args:
        part: A part, or the reference of one on ``shelf``; what is damaged is not sent.
        repo_id: The repository, as in ``"someone/lenet-digits"``.
        shelf: The shelf a reference is looked up on.
        token: Who you are; by default whoever has logged in with the hub's own tool.
        private: Whether a new repository is; one that is there stays as it is.

    Raises:
        ShelfError: no such part or hub, or the hub refuses.
        MissingExtraError: ``huggingface_hub`` is not installed.

    >>> push("lenet", "someone/lenet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: 'lenet' is a reference; say on which shelf
    """
    with TemporaryDirectory() as place:
        folder, hub = _folder_of(part, shelf, Path(place)), _package()
        with _in_plain_words(repo_id):
            api = hub.HfApi(token=token)
            address = api.create_repo(repo_id, private=private, exist_ok=True)
            api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                allow_patterns=list(FILES),
                commit_message="Add a dovetail part",
            )
    return str(address)


def pull(repo_id: str, *, revision: str | None = None, token: str | None = None) -> Part:
    """Fetch the part in a repository of the hub, checked like any other folder.

    Raises:
        ShelfError: no such repository, revision or hub, or there is no part in it.
        FormatError: there is one, and it is damaged.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    hub = _package()
    with TemporaryDirectory() as place:
        with _in_plain_words(repo_id, revision):
            hub.snapshot_download(
                repo_id,
                revision=revision,
                token=token,
                allow_patterns=list(FILES),
                local_dir=place,
            )
        if not is_part_folder(Path(place)):
            raise ShelfError(f"the repository {repo_id!r} holds no part (no manifest.json)")
        try:
            return from_pretrained(place, verify=True)
        except FormatError as error:  # which names a folder that nobody knows
            said = str(error).replace(f"{place}/", "").replace(f"{place}: ", "")
            raise FormatError(f"the part in {repo_id!r} is damaged: {said}") from None


def _folder_of(part: Part | str, shelf: Shelf | str | Path | None, place: Path) -> Path:
    if isinstance(part, Part):
        return part.save_pretrained(place / "part")
    if shelf is None:
        raise ShelfError(f"{part!r} is a reference; say on which shelf")
    entry = (shelf if isinstance(shelf, Shelf) else Shelf(shelf, create=False)).entry(part)
    entry.load(verify=True)
    return entry.folder


def _package() -> ModuleType:
    return need("huggingface_hub", feature="Sharing parts on a hub", extra="hub")


@contextmanager
def _in_plain_words(repo_id: str, revision: str | None = None) -> Iterator[None]:
    bars, errors = (import_module(f"huggingface_hub.{name}") for name in ("utils", "errors"))
    silent = not sys.stderr.isatty() and not bars.are_progress_bars_disabled()
    if silent:
        bars.disable_progress_bars()  # they would end up in somebody's log
    try:
        yield
    except Exception as error:  # the package's own, its HTTP library's, or the system's
        raise ShelfError(_why_not(errors, error, repo_id, revision)) from error
    finally:
        if silent:
            bars.enable_progress_bars()


def _why_not(errors: ModuleType, error: Exception, repo_id: str, revision: str | None) -> str:
    name = type(error).__name__
    match error:
        case errors.HFValidationError():
            return f"{repo_id!r} cannot name a repository, as 'someone/lenet-digits' can"
        case errors.GatedRepoError():
            return f"the repository {repo_id!r} asks for its owner's permission first"
        case errors.RepositoryNotFoundError():
            return f"no repository {repo_id!r} on the hub, or it is not for you; are you logged in?"
        case errors.RevisionNotFoundError():
            return f"the repository {repo_id!r} has no revision {revision!r}"
        case errors.LocalTokenNotFoundError():
            return "the hub wants to know who you are: log in with `hf auth login`"
        case errors.HfHubHTTPError():
            return f"the hub refuses for {repo_id!r}: {first_line(error)}"
        case errors.LocalEntryNotFoundError() | ConnectionError() | TimeoutError():
            return f"cannot reach the hub for {repo_id!r}: is there a network?"
        case _ if "Connect" in name or "Timeout" in name:
            return f"cannot reach the hub for {repo_id!r}: is there a network?"
    return f"sharing {repo_id!r} failed: {name}: {first_line(error)}"
