"""What commands have in common: where parts and data lie, the seed, how a task is read."""

from __future__ import annotations

from dovetail.core.settings import Folder, Settings, setting


class Common(Settings):
    """Of every command that works on tasks and parts."""

    seed: int = setting(0, "of everything drawn")
    shelf: Folder = setting("shelf", "folder of parts")
    data: Folder | None = setting(None, "folder of data sets (default: ./data)")


class Reading(Settings):
    """How a task is read from files."""

    target: tuple[str, ...] | None = setting(
        None, "of a table: what to predict; may be repeated", metavar="COLUMN", many="append"
    )
    kind: str | None = setting(None, "classes, multilabel or regression, if not as it looks")
    size: tuple[int, int] | int | None = setting(
        None, "of images: 32, or height and width as 24x32", metavar="PIXELS"
    )
