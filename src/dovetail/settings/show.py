"""What the commands that show things let people choose: predictions, reports, data sets, a tour."""

from __future__ import annotations

from dovetail.core.settings import Folder, Settings, setting

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from typing import Literal

    from dovetail.tasks.catalogue import Way


class Predict(Settings):
    """Name the classes of new inputs."""

    output: str | None = setting(
        None, "write every prediction to this CSV file", flag="-o --output", metavar="FILE"
    )
    top: int | None = setting(
        None, "the likeliest so many classes, instead of every probability", least=1
    )
    skip_bad: bool = setting(False, "leave files out that cannot be read, and name them")
    rows: int = setting(20, "most predictions to show on the terminal", least=1)
    most: int | None = setting(None, "only the first so many inputs", least=1)


class Report(Settings):
    """Make a page of records."""

    output: str | None = setting(
        None,
        ".html or .md (default: report.html, unless only --figures is asked for)",
        flag="-o --output",
    )
    title: str = setting("dovetail report", "of the page")
    shelf: Folder | None = setting(None, "also list this shelf")
    figures: str | None = setting(None, "write each figure to a file here", metavar="FOLDER")
    format: Literal["svg", "png"] = setting("svg", "of the figures", choices=("svg", "png"))


class Data(Settings):
    """Get data sets."""

    way: Way | None = setting(
        None,
        "get it only this way (default: try each)",
        choices=("package", "debian", "download"),
        flag="--from",
    )


class Demo(Settings):
    """A tour on the bundled digits."""

    folder: Folder = setting("demo", "where shelf, records and report go")
    epochs: int = setting(15, "passes of each training", least=1)
