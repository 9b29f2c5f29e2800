"""What ranking lets people choose."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.measure.features import Pooling
    from dovetail.tasks.splits import Split


class Rank(Settings):
    """Rank parts for a task."""

    at: tuple[str, ...] | None = setting(
        None,
        "cut point to rank at, or 'every', or 'output'; may be repeated",
        metavar="POINT",
        many="append",
    )
    by: str | None = setting(None, "the score (default: the one with the best record)")
    samples: int | None = setting(2000, "labelled examples to look at (0: all of them)", least=0)
    anytime: bool = setting(False, "let those fall early that can no longer be the best")
    seconds: float | None = setting(
        None, "with --anytime: say what is known after so long", above=0, metavar="SECONDS"
    )
    split: Split = setting(
        "train",
        "where they come from; validation for parts trained on this very task",
        choices=("train", "validation"),
    )
    pooling: Pooling = setting(
        "average", "how feature maps become rows", choices=("average", "flatten")
    )
    confidence: float = setting(0.9, "of the intervals", above=0, most=1)
    cache: str | None = setting(None, "keep features here between calls", metavar="FOLDER")
