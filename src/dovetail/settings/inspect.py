"""What looking into a part lets people choose."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.tasks.splits import Split


USUAL = ("deviation", "profile", "curvature", "gradients")
"""What is looked at unless said, in about a minute."""

MORE = ("landscape", "hessian", "study", "theory")
"""What there is beyond, which takes longer or another task."""

LOOKS = (*USUAL, *MORE)

NEEDS = {
    "deviation": ("before",),
    "theory": ("task", "source"),
    **dict.fromkeys(
        ("profile", "curvature", "gradients", "landscape", "hessian", "study"), ("task",)
    ),
}
"""What each look takes beside the part."""

OF_CLASSES = ("profile",)
"""Looks that a task of numbers has not."""


class Inspect(Settings):
    """Look into a part: what its layers learnt, and why it does or does not transfer."""

    before: str | None = setting(
        None, "the part it was before it was trained or tuned, for what moved", metavar="PART"
    )
    what: tuple[str, ...] | None = setting(
        None,
        "look at these only (default: what fits in about a minute), some of",
        choices=LOOKS,
        metavar="A,B",
    )
    all: bool = setting(False, "look at everything that there is data for")
    plan: bool = setting(False, "say what each look would take, and stop")
    samples: int = setting(500, "labelled examples to look at", least=2)
    split: Split = setting("train", "where they come from", choices=("train", "validation"))
    module: str | None = setting(
        None, "whose curvature, by name in the network (default: its last layer)", metavar="NAME"
    )
    k: int = setting(10, "neighbours that make an example redundant", least=1)
    source: str | None = setting(
        None, "the task that the part learnt, for what theory expects", metavar="TASK"
    )
    report: str | None = setting(None, "also write a page, .html or .md", metavar="FILE")
