"""Cut a shelved network in two parts, or list where it can be cut."""

from __future__ import annotations

from dovetail.core.views import Table, Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job
from dovetail.parts.contract import shown_shape
from dovetail.parts.cutting import cut as cut_part
from dovetail.parts.cutting import cut_points
from dovetail.parts.part import Part
from dovetail.settings.join import Cut
from dovetail.shelf.names import name_of


@job
def cut(frame: Frame, /, ref: str, at: str | None = Cut.at) -> Outcome:
    """Cut at ``at`` and shelve both halves, or none, as ``<name>.front`` and ``<name>.back``.

    Without ``at``, list every place where one tensor crosses.
    """
    network = frame.part(ref)
    if at is None:
        return _points(network, ref)
    halves = cut_part(network, at)
    names = [f"{frame.name or name_of(ref)}.{side}" for side in ("front", "back")]
    front, back = frame.shelve(dict(zip(names, halves, strict=True))).values()
    space = halves[0].contract.gives[0].space
    rows = ((front.ref, str(halves[0].contract)), (back.ref, str(halves[1].contract)))
    return Outcome(
        view=(
            Table(("part", "contract"), rows, caption=f"{ref} cut at {at}"),
            Text(f"The two share the space {space}: they fit each other."),
        ),
        data={"front": front.ref, "back": back.ref, "space": space},
    )


def _points(network: Part, ref: str) -> Outcome:
    """Every place where one tensor crosses, with its shape."""
    points = cut_points(network)
    rows = tuple((p.name, shown_shape(p.shape), p.activation) for p in points)
    columns = ("cut point", "shape", "activation")
    return Outcome(
        view=(Table(columns, rows, caption=f"Where {ref} can be cut"),),
        data={"points": [{"at": p.name, "shape": p.shape, "after": p.activation} for p in points]},
    )
