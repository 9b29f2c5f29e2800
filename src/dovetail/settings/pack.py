"""What packing and unpacking let people choose."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.reuse.packing import Rule

MARGIN = 2.576
"""Standard errors that must fit into a budget, unless said: one in two hundred exceeds as many."""


class Place(Settings):
    """Where it goes."""

    to: str | None = setting(
        None,
        "folder or file to write; with --all a shelf (default: beside the source)",
        metavar="PATH",
    )
    replace: bool = setting(False, "overwrite what is at --to")


class Bits(Settings):
    """How many bits a tensor gets."""

    extra_bits: int = setting(6, "on top of what the rule finds", least=0)
    bits: int | None = setting(None, "this many for every tensor, instead of a rule", least=1)
    levels: int | None = setting(
        None, "this many values for every tensor, any number of them; zero is one", least=2
    )
    rule: Rule | None = setting(
        None,
        "bits by the entropy of the weights (default), or by the loss's gradient on --task",
        choices=("entropy", "gradient"),
    )
    channels: bool = setting(False, "a range for every output channel")
    lossless: tuple[str, ...] = setting(
        (),
        "tensors to keep exactly, such as 'head.*'; may be repeated",
        metavar="PATTERN",
        many="append",
    )


class Budget(Settings):
    """What packing may cost."""

    loss_budget: float | None = setting(
        None,
        "the smallest file whose mean loss on validation rises by no more: nats for classes, "
        "squared error for numbers and for the scores of a part fitted in closed form",
        least=0,
        metavar="LOSS",
    )
    points: float | None = setting(
        None,
        "the smallest file whose accuracy is expected to fall by no more points, going by how "
        "sure the part is on validation",
        least=0,
    )
    margin: float | None = setting(
        None,
        f"of a budget: standard errors that must fit into it, too (default: {MARGIN})",
        least=0,
    )


class Pack(Place, Bits, Budget):
    """Pack weights small."""

    task: str | None = setting(None, "measure before and after on this task's test split")


class Unpack(Place):
    """Turn packed weights into plain tensors again."""

    most_gigabytes: float | None = setting(
        None,
        "of a file: refuse to unpack to more (default: what packing rarely exceeds)",
        above=0,
        metavar="GB",
    )
