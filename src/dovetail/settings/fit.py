"""What going from data to a model in use lets people choose."""

from __future__ import annotations

from dovetail.core.settings import Folder, Settings, setting


class Fitting(Settings):
    """From images or a table to a model in use."""

    minutes: float = setting(10.0, "time to take, about; what is best by then counts", above=0)
    released: bool = setting(True, "try installed networks that others trained, of images")
    sizes: tuple[int, ...] = setting(
        (64, 96, 128, 224), "sides of images to try them at, in pixels", least=32, metavar="A,B"
    )
    points: float = setting(
        0.5, "of accuracy, or hundredths of R², that packing may cost; 0 not to pack", least=0
    )
    confidence: float = setting(0.9, "of the interval", above=0, most=1)
    parts: tuple[str, ...] | None = setting(
        None,
        "a part on the shelf to try; may be repeated (default: all that take such inputs)",
        metavar="PART",
        many="append",
    )
    output: Folder = setting("model", "folder of the model", flag="-o --output")
    report: str = setting("report.html", "page to write, .html or .md", metavar="FILE")
    overwrite: bool = setting(False, "replace a model that is in that folder")
