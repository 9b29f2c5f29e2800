"""What cutting, joining and recombining let people choose, and which norms are usual."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.parts.norms import Norms
    from dovetail.tasks.splits import Split

NORMS = ("auto", "stored", "batch", "recalibrated")
"""Statistics that batch norms can use; auto is one of the others."""


class Joined(Settings):
    """Of parts that are joined, wherever that happens.

    Auto, because no one of the others is right for all parts.  A network's own halves give with
    stored statistics what the whole gave, to the last bit, also for one input.  Parts that were
    trained to be exchanged reached 51 % with them and 63 % with those of each batch
    (``reproduce/fit_norms.py``).  Which parts are which, ``parts.norms.norms_for`` reads off them.

    For strangers no rule is right, so where a task has validation images, those decide
    (``measure.pairs.choose_norms``).  Where there are none, a forced join takes the batch's, and a
    solved stitch what is stored, because it imitates the front which that is of.  With LeNets
    stored statistics then lose 4 points (89 against 93 %, ``reproduce/auto_norms.py``); with
    released EfficientNets the batch's lose 45 (21 against 66 %, ``reproduce/real_stitching.py``).
    The smaller loss is the better default, and one input needs no batch.
    """

    norms: Norms = setting(
        "auto",
        "statistics that batch norms use; auto: those that the parts were trained for, or for "
        "strangers those that validation images choose",
        choices=NORMS,
    )


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


class Join(Repairs, Joined):
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
        Joined.norms,
        "statistics that batch norms use, auto: those that the parts were trained for; may be "
        "repeated",
        choices=NORMS,
        many="append",
    )
    split: Split = setting("test", "measure on", choices=("train", "validation", "test"))
    batch_size: int = setting(512, "images a batch at most", least=1)
    calibration: int = setting(2048, "training images for recalibrated norms", least=2)
    correlation: bool = setting(True, "correlate the fronts' channels")
