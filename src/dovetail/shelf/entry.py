"""An entry: what the shelf says of one version before any weight is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.core.errors import DovetailError, FormatError, RecipeError
from dovetail.parts.contract import Contract
from dovetail.parts.facts import read_facts
from dovetail.parts.origin import Origin
from dovetail.parts.recipe import Recipe, in_words
from dovetail.shelf.names import Reference
from dovetail.shelf.notes import Note, read_note

if TYPE_CHECKING:
    from dovetail.parts.part import Part

__all__ = ["Entry", "read_entry"]


@dataclass(frozen=True)
class Entry:
    """One version of one part on a shelf.

    A damaged part has an entry as well: ``problem`` says what is wrong, the other facts are empty.
    So has a name whose folder cannot be looked into, as version 0.

    >>> entry = Entry("lenet", 2, Path("shelf/lenet/2"))
    >>> entry.ref, str(entry)
    ('lenet@2', 'lenet@2')
    """

    name: str
    version: int
    folder: Path
    contract: Contract = field(default_factory=Contract)
    recipe: Recipe | None = None
    origin: Origin = field(default_factory=Origin)
    digest: str = ""
    bytes: int = 0
    tags: tuple[str, ...] = ()
    added: str | None = None
    problem: str | None = None

    @property
    def ref(self) -> str:
        """The reference, ``name@version``, or the name of a closed folder."""
        return str(Reference(self.name, self.version or None))

    @property
    def what(self) -> str:
        """The recipe in a few words."""
        return "damaged" if self.recipe is None else in_words(self.recipe)

    def load(self, *, verify: bool = False) -> Part:
        """The part itself, read strictly; with ``verify`` its stored probe is replayed.

        Raises:
            FormatError: it is damaged or gone; the message names the folder.
            RecipeError: it needs a builder that is not registered here.
        """
        from safetensors import SafetensorError

        from dovetail.parts.part import Part  # torch loads here, so that a list needs none

        try:
            return Part.from_pretrained(self.folder, verify=verify)
        except RecipeError as error:
            raise RecipeError(f"{self.ref!r} in {self.folder} cannot be rebuilt: {error}") from None
        except (DovetailError, OSError, RuntimeError, SafetensorError) as error:
            where = "" if str(self.folder) in str(error) else f"{self.folder}: "
            raise FormatError(f"{where}{error}") from error

    def __str__(self) -> str:
        return self.ref

    def __repr__(self) -> str:
        if self.problem is not None:
            return f"Entry({self.ref}, damaged: {self.problem})"
        return f"Entry({self.ref}, {self.what}: {self.contract})"


def read_entry(name: str, version: int, folder: Path) -> Entry:
    """Read what a part's folder says of it; damage becomes the entry's ``problem``."""
    try:
        if not version:
            os.scandir(folder).close()  # fails as it did when its versions were looked for
        facts = read_facts(folder, check_hashes=False, check_builders=False)
    except (DovetailError, OSError) as error:
        return Entry(name, version, folder, problem=_short(error, folder))
    try:
        note = read_note(folder)
    except (DovetailError, OSError):
        note = Note()  # tags are lost, the part is not; `verify` tells
    return Entry(
        name,
        version,
        folder,
        facts.contract,
        facts.recipe,
        facts.origin,
        facts.digest,
        sum(file.size for file in facts.files.values()),
        note.tags,
        note.added,
    )


def _short(error: Exception, folder: Path) -> str:
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    return str(error).replace(f"{folder}/", "").replace(f"{folder}: ", "")
