"""What cutting, joining and recombining let people choose, and which norms are usual."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.parts.norms import Norms
    from dovetail.tasks.task import Split

__all__ = ["NORMS", "Cut", "InUse", "Join", "Recombine", "Recombined", "Repairs"]

NORMS = ("stored", "batch", "recalibrated")
"""Statistics that batch norms can use."""


class InUse(Settings):
    """Of a network as it will run.

    Stored statistics: a network's own halves give to the last bit what the whole gave, and in use
    inputs come one at a time, of which no batch has statistics.
    """

    norms: Norms = setting("stored", "statistics that batch norms use", choices=NORMS)


class Recombined(Settings):
    """Of parts that were not trained with each other.

    Statistics of the batch: those that a head has stored are of another front.  Recombined parts
    with batch norms reached 63 % so and 51 % with stored ones (``reproduce/fit_norms.py``).
    """

    norms: Norms = setting("batch", "statistics that batch norms use", choices=NORMS)


class Cut(Settings):
    """Cut a network in two."""

    at: str | None = setting(None, "cut point; left out, all are listed", metavar="POINT")


class Repairs(Settings):
    """What would make two parts fit."""

    reference: str | None = setting(
        None,
        "a front of the head's space, for the stitch (default: one that is on the shelf)",
        metavar="PART",
    )
    epochs: int = setting(5, "of a stitch that is trained", least=1)


class Join(Repairs, InUse):
    """Join parts end to end."""

    task: str | None = setting(None, "measure the joined network on this task's test split")
    force: bool = setting(False, "join although the spaces differ")
    adapters: bool = setting(False, "put 1×1 adapters between different channel counts")
    repair: str | None = setting(
        None,
        "do it: fitted on the training split; a stitch is shelved as NAME.stitch",
        choices=("recalibrate", "stitch", "trained-stitch"),
    )


class Recombine(Settings):
    """Measure every front with every head."""

    norms: tuple[Norms, ...] | Norms = setting(
        Recombined.norms,
        "statistics that batch norms use; may be repeated",
        choices=NORMS,
        many="append",
    )
    split: Split = setting("test", "measure on", choices=("train", "validation", "test"))
    batch_size: int = setting(512, "images a batch at most", least=1)
    calibration: int = setting(2048, "training images for recalibrated norms", least=2)
    correlation: bool = setting(True, "correlate the fronts' channels")
