"""The ways to train, a row each, and what each lets people choose.

A new way is a function in a file of its own and a row in :data:`WAYS`: command, help, checks and
docs follow from there.  The function takes ``(model, task, *, seed, **settings)`` and returns a
:class:`~dovetail.train.fit.Fit`; one for several networks takes models and tasks.
"""

from __future__ import annotations

from dovetail.core.amounts import read_budget, read_speed
from dovetail.core.errors import SettingsError, argument, nearest
from dovetail.core.settings import Settings, setting
from dovetail.settings.loop import LOSS_NAMES as LOSS_NAMES
from dovetail.settings.loop import Loop as Loop
from dovetail.settings.loop import Steps as Steps
from dovetail.settings.pack import Bits
from dovetail.settings.stages import Layerwise as Layerwise
from dovetail.settings.stages import Partitioned as Partitioned

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PRETEXTS = ("rotation", "jigsaw", "views")
FITTING = ("dcc", "rp", "iiw")


class EndToEnd(Steps):
    """All layers at once, by the gradient of one loss."""

    loss: str | None = setting(
        None, "of classes (default: cross-entropy)", choices=LOSS_NAMES, metavar="LOSS"
    )
    memory_budget: str | float | int | None = setting(
        None,
        "the most that the training may hold: a share of a step without (0.5, 50%), or bytes "
        "(400MB); activations are computed twice as need be, the outcome is the same",
        metavar="SIZE",
    )
    plan: bool = setting(
        False, "say what a step takes in memory and time, each way, and which to take; then stop"
    )
    keep_epochs: int | None = setting(
        None, "also shelve the network of every Nth epoch, as NAME.epoch03", least=1, metavar="N"
    )
    average_every: int | None = setting(
        None,
        "in several processes (torchrun --standalone --nproc-per-node 2 -m dovetail train ...): go "
        "on from the mean of their weights, sent packed, after every K steps",
        least=1,
        metavar="K",
    )
    extra_bits: int | None = setting(
        None,
        f"of those weights: bits beyond their entropy (default: {Bits.extra_bits})",
        metavar="C",
    )


class Modular(Steps):
    """One module after the other, the body on which examples are alike."""

    # An objective that does not see how long features are has a gradient that grows as they
    # shrink, like 1/length, and fresh networks have short features.
    clip: float | None = setting(1.0, "scale a longer gradient down to this length", above=0)
    objective: str = setting("al", "proxy of the body: al, utal, cts, nmse, or one's -neo form")
    at: tuple[str, ...] | None = setting(
        None,
        "cut here; repeated, in the order of the network (default: before the last layer)",
        metavar="POINT",
        many="append",
    )
    labels_per_class: int | None = setting(
        None, "labelled examples a class for the output module (default: all)", metavar="K"
    )
    loss: str = setting("cross-entropy", "of the output module", choices=LOSS_NAMES)
    head_epochs: int | None = setting(None, "epochs of the output module", least=1)
    supervision: str = setting("labels", "what the body is told", choices=("labels", "pairs"))
    pairs: int | None = setting(None, "how many pairs (default: as many as examples)", metavar="N")
    keep_epochs: int | None = setting(
        None, "also shelve the network of every Nth epoch, as NAME.epoch03", least=1, metavar="N"
    )
    modules: bool = setting(False, "also shelve the modules, as NAME.module1 and NAME.head")


class SelfSupervised(Steps):
    """The front of a network, without any labels."""

    by: str = setting("rotation", "the pretext", choices=PRETEXTS)
    at: tuple[str, ...] | None = setting(
        None,
        "where the front ends (default: before the last layer)",
        metavar="POINT",
        many="append",
    )


class Compatible(Steps):
    """Several networks, so that the front of one works with the head of another."""

    by: tuple[str, ...] = setting(
        FITTING,
        "what makes the parts fit: any of dcc (a shared head for the common classes), rp (a "
        "shared head for the pretext), iiw (identical initial weights)",
        metavar="A,B",
    )
    scheme: str = setting(
        "joint",
        "all at once, or one network after the other",
        choices=("joint", "incremental"),
    )
    at: tuple[str, ...] | None = setting(
        None,
        "cut here; repeated, a point for each task (default: before the last layer)",
        metavar="POINT",
        many="append",
    )
    loss: str | None = setting(
        None,
        "of each network's own head (default: cross-entropy)",
        choices=LOSS_NAMES,
        metavar="LOSS",
    )
    pretext: str = setting("rotation", "of rp", choices=PRETEXTS)
    channels: int | None = setting(
        None, "what adapters map the channels at the cut to", least=1, metavar="N"
    )
    auxiliaries: tuple[str, ...] | None = setting(
        None,
        "train against this shelved head, NAME.dcc or NAME.rp of an earlier training, or "
        "rp=ANY.NAME; frozen with --scheme incremental; may be repeated",
        metavar="HEAD",
        many="append",
        flag="--auxiliary",
    )
    common: tuple[str, ...] | None = setting(
        None, "classes of dcc (default: all shared)", metavar="A,B"
    )
    project_conflicts: bool = setting(
        False, "take what is opposed out of the gradients before they are added"
    )


class ClosedForm(Settings):
    """A perceptron, solved for layer by layer without steps."""

    patience: int | None = setting(None, "stop after so many layers without progress", least=1)
    projection: tuple[str, ...] = setting(
        ("auto",),
        "where the targets of the layers come from: auto, random, pca, sorted-pca, "
        "deterministic, ...; one, or one for each layer",
        metavar="A,B",
    )
    tries: int = setting(5, "random projections tried for a layer", least=1, metavar="N")
    ridge: float | str = setting("auto", "penalty, or auto", metavar="X")
    solver: str = setting("auto", "how", choices=("auto", "cholesky", "eigen", "pinv", "lstsq"))
    target_scale: float = setting(1.0, "scale of the layers' targets", metavar="X")
    label_weight: float | str = setting(
        "auto", "weight of the labels in the layers' targets, or auto", metavar="X"
    )
    ema: float | None = setting(
        None, "weigh labels by the errors so far, with this decay", metavar="X"
    )
    rank: int | None = setting(None, "cut hidden layers to this rank", metavar="R")
    filters: int | None = setting(
        None, "of images: so many of their patches as filters in front", least=1, metavar="N"
    )
    patch_size: int | None = setting(
        None, "side of a filter (default: a quarter of the image's, 3 to 7)", least=1, metavar="N"
    )
    pool: int | None = setting(
        None, "side of the squares it is averaged over (default: for maps of 4 by 4)", least=1
    )
    precision: str = setting(
        "float32", "of the weights on the shelf", choices=("float32", "float64")
    )


class Boosting(Settings):
    """Gradient-boosted trees for tables, as scikit-learn fits them."""

    rounds: int = setting(100, "trees for each output", least=1)
    rate: float = setting(0.1, "how much of what is left a tree corrects", above=0)
    leaves: int = setting(31, "of a tree, at most", least=2)


class Way:
    """A way to train.

    Attributes:
        name: After ``--how``.
        function: Where it is, ``"package.module:function"``.
        settings: What it lets people choose.
        example: A command.
        several: Whether it takes several tasks, and a network for each.
        labels: Whether what it gives is measured by the labels of the test split.
        builds: Whether it makes its own network from the task, and takes none to start from.
    """

    __slots__ = ("builds", "example", "function", "labels", "name", "settings", "several")

    def __init__(
        self,
        name: str,
        function: str,
        settings: type[Settings],
        example: str,
        *,
        several: bool = False,
        labels: bool = True,
        builds: bool = False,
    ) -> None:
        self.name, self.function, self.settings, self.example = name, function, settings, example
        self.several, self.labels, self.builds = several, labels, builds

    @property
    def help(self) -> str:
        """What it is, in a line."""
        return (self.settings.__doc__ or "").partition("\n")[0]

    def load(self) -> Callable[..., Any]:
        """The function; torch loads here."""
        from importlib import import_module

        module, _, name = self.function.partition(":")
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function


WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        Way(
            "end-to-end",
            "dovetail.train.end_to_end:end_to_end",
            EndToEnd,
            "dovetail train digits --net lenet5 --set norm=batch --epochs 20 --name lenet",
        ),
        Way(
            "modular",
            "dovetail.train.modular:modular",
            Modular,
            "dovetail train digits --how modular --set unit=true --labels-per-class 1 "
            "--supervision pairs",
        ),
        Way(
            "layerwise",
            "dovetail.train.layerwise:layerwise",
            Layerwise,
            "dovetail train digits --how layerwise --net lenet5 --set norm=batch --epochs 5",
        ),
        Way(
            "partitioned",
            "dovetail.train.partitioned:partitioned",
            Partitioned,
            "dovetail train digits --how partitioned --net lenet5 --set norm=batch --epochs 5",
        ),
        Way(
            "self-supervised",
            "dovetail.train.self_supervised:self_supervised",
            SelfSupervised,
            "dovetail train digits --how self-supervised --by rotation --at conv2",
            labels=False,
        ),
        Way(
            "compatible",
            "dovetail.train.compatible:compatible",
            Compatible,
            "dovetail train digits 'digits~inverted' --how compatible --by dcc,rp,iiw --at conv2 "
            "--set norm=batch --name pair",
            several=True,
        ),
        Way(
            "closed-form",
            "dovetail.closed_form.solve:solve",
            ClosedForm,
            "dovetail train digits --how closed-form --set hidden=[300] --name solved",
            builds=True,
        ),
        Way(
            "boosting",
            "dovetail.train.boosting:boost",
            Boosting,
            "dovetail train houses.csv --target price --how boosting --name trees",
            builds=True,
        ),
    )
}
"""All ways to train, the usual one first."""


def owners_of(name: str) -> list[str]:
    """The ways that have a setting.

    >>> owners_of("pairs"), "closed-form" in owners_of("epochs")
    (['modular'], False)
    """
    return [way.name for way in WAYS.values() if name in way.settings.declared]


def chosen(
    how: str, options: dict[str, Any], *, tasks: int, starts: int, new_net: bool
) -> tuple[Way, dict[str, Any]]:
    """The way, and the options that were said, unless what is asked for contradicts itself.

    >>> chosen("modular", {"epochs": 3, "clip": None}, tasks=1, starts=0, new_net=True)[1]
    {'epochs': 3}
    >>> chosen("end-to-end", {"pairs": 5}, tasks=1, starts=0, new_net=True)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: pairs is an option of how='modular', not of how='end-to-...
    """
    if starts and new_net:
        raise SettingsError(
            f"a run from a part keeps its network; leave out {argument('net')} and "
            f"{argument('args')}"
        )
    if how not in WAYS:
        raise SettingsError(f"unknown way to train {how!r}{nearest(how, WAYS)}")
    way = WAYS[how]
    said = {name: value for name, value in options.items() if value is not None}
    for name, value in said.items():
        if name not in way.settings.declared:
            *most, last = owners_of(name) or ["no way"]
            owners = f"{', '.join(most)} or {last}" if most else last
            raise SettingsError(
                f"{argument(name, value) if value is False else argument(name)} is an option of "
                f"{argument('how', owners)}, not of {argument('how', how)}"
            )
    if way.builds and (tasks != 1 or starts):
        raise SettingsError(f"{argument('how', how)} fits one new network to one task")
    if not way.several and (tasks != 1 or starts > 1):
        what = "tasks" if tasks != 1 else "parts to start from"
        many = " or ".join(each.name for each in WAYS.values() if each.several)
        raise SettingsError(
            f"{argument('how', how)} trains one network on one task; several {what} are for "
            f"{argument('how', many)}"
        )
    way.settings.check(said)
    if "link" in said:
        read_speed(said["link"])
    if "memory_budget" in said:
        read_budget(said["memory_budget"])
    return way, said
