"""What the uses of parts that fit let people choose."""

from __future__ import annotations

from dovetail.core.settings import setting
from dovetail.settings.join import Joined
from dovetail.settings.train import PRETEXTS, Steps


class Domain(Steps, Joined):
    """Adapt a network's front to unlabelled images of another domain."""

    epochs: int = setting(None, "passes over the images (default: for 1000 steps)", least=1)
    lr: float = setting(1e-3, "learning rate", least=0)
    schedule: str = setting(
        "constant", "of the learning rate", choices=("one-cycle", "cosine", "constant")
    )
    weight_decay: float = setting(0.0, "pull of the weights to zero", least=0)
    head: str | None = setting(None, "another head than the network's own")
    rp_head: str | None = setting(
        None, "the pretext's head (default: GROUP.rp)", metavar="HEAD", flag="--rp"
    )
    pretext: str = setting("rotation", "what that head was trained for", choices=PRETEXTS)


class Replace(Steps, Joined):
    """Train another front behind a network's head, and say what the switch costs."""

    head: str | None = setting(None, "another head than the network's own")
    at: str | None = setting(None, "where the new front ends", metavar="POINT")
    auxiliaries: tuple[str, ...] | None = setting(
        None,
        "another frozen head of the same space, NAME.dcc or NAME.rp; may be repeated",
        metavar="HEAD",
        many="append",
        flag="--auxiliary",
    )
    pretext: str = setting("rotation", "what NAME.rp was trained for", choices=PRETEXTS)


class Devices(Steps):
    """Train extractors of several architectures with one head."""

    at: tuple[str, ...] | None = setting(
        None, "where each extractor ends, or all of them", metavar="POINT", many="append"
    )
    channels: int = setting(64, "what the extractors give", least=1)
    by: tuple[str, ...] = setting(("dcc",), "dcc, or dcc,rp for a pretext's head beside it")
    pretext: str = setting("rotation", "of rp", choices=PRETEXTS)


class Extend(Steps, Joined):
    """Teach a head more classes behind one front; it stays fit for all others."""

    fronts: tuple[str, ...] | None = setting(
        None,
        "judge it behind these (default: all on the shelf that fit the head)",
        metavar="FRONT",
        many="+",
    )
    classes: tuple[str, ...] | None = setting(
        None, "new ones (default: all of the task)", metavar="A,B"
    )
    moving: bool = setting(False, "train the front too, held in its space by --rp")
    rp_head: str | None = setting(
        None, "with --moving: the pretext's head", metavar="HEAD", flag="--rp"
    )
    pretext: str = setting("rotation", "what that head was trained for", choices=PRETEXTS)


class Transfer(Steps, Joined):
    """Try a ready head behind candidate fronts, at once and fine-tuned."""

    epochs: int = setting(1, "passes over the training split; 0 to measure only", least=0)
    # What is ready should be improved on, not overwritten.
    lr: float = setting(0.01, "peak learning rate", least=0)
    fronts: tuple[str, ...] | None = setting(
        None,
        "candidates (default: all on the shelf that fit the head)",
        metavar="FRONT",
        many="+",
    )
    others: tuple[str, ...] | None = setting(
        None, "other heads to compare with, beside a fresh one", metavar="HEAD", many="+"
    )
    steps: tuple[int, ...] | None = setting(None, "measure after so many steps", metavar="1,10,100")


USES = {
    "domain": (Domain, "domain pair.digits 'digits~noise0.3'"),
    "replace": (
        Replace,
        "replace pair.digits digits --net lenet5 --set norm=batch --at conv2 --auxiliary pair.rp",
    ),
    "devices": (
        Devices,
        "devices digits --net resnet8 --at layer2 --net lenet5 --at conv2 --channels 16 --name kit",
    ),
    "extend": (Extend, "extend kit.head digits --front kit.resnet8 --epochs 10 --name kit2"),
    "transfer": (
        Transfer,
        "transfer pair.digits.head digits --fronts pair.digits pair.digits-inverted --epochs 1",
    ),
}
"""The uses: what each lets people choose, and an example."""
