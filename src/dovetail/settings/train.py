"""The ways to train, a row each, and what each lets people choose.

A new way is a function in a file of its own and a row in :data:`WAYS`: command, help, checks and
docs follow from there.  The function takes ``(model, task, *, seed, **settings)`` and returns a
:class:`~dovetail.train.fit.Fit`; one for several networks takes models and tasks.
"""

from __future__ import annotations

from dovetail.core.amounts import read_budget
from dovetail.core.errors import SettingsError, argument, nearest
from dovetail.core.settings import Settings, setting
from dovetail.settings.pack import Bits

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PRETEXTS = ("rotation", "jigsaw", "views")
FITTING = ("dcc", "rp", "iiw")
LOSS_NAMES = (
    *("cross-entropy", "mse", "hinge"),
    *("sparse-cross-entropy", "negative-correlation", "squared-error"),
)


class Loop(Settings):
    """Of every training in steps."""

    epochs: int = setting(20, "passes over the training split", least=1)
    batch_size: int = setting(64, "examples a step", least=1)
    optimiser: str = setting("sgd", "who steps", choices=("sgd", "adam", "adamw"))
    lr: float = setting(0.1, "peak learning rate", least=0)
    momentum: float = setting(0.9, "of sgd, Nesterov's", least=0)
    weight_decay: float = setting(5e-4, "pull of the weights to zero", least=0)
    schedule: str = setting(
        "one-cycle", "of the learning rate", choices=("one-cycle", "cosine", "constant")
    )
    clip: float | None = setting(None, "scale a longer gradient down to this length", above=0)
    patience: int | None = setting(
        None, "stop after so many epochs without a better validation loss, keep the best", least=1
    )
    device: str = setting("auto", "where to compute: auto, cpu, cuda, ...")
    checkpoint_seconds: float = setting(
        10.0, "how often an unfinished run is saved", least=0, metavar="SECONDS"
    )
    resume: bool = setting(True, "go on with an unfinished run of the same settings")


class Steps(Loop):
    """Of every way that goes in steps over a task."""

    augment: str | None = setting(None, "such as flip,shift:2,cutout:4,rotate:10")


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


class Layerwise(Steps):
    """One layer after the other from the input up, each under a decision block of its own."""

    schedule: str = setting(
        "one-cycle",
        "of the learning rate in each stage; transfer: constant, and rates and epochs that grow "
        "from layer to layer, for a network that was trained before",
        choices=("one-cycle", "cosine", "constant", "transfer"),
    )
    loss: str | None = setting(
        None, "of classes (default: cross-entropy)", choices=LOSS_NAMES, metavar="LOSS"
    )
    at: tuple[str, ...] | None = setting(
        None,
        "the layers end here; repeated, in the order of the network (default: every layer or block "
        "with weights)",
        metavar="POINT",
        many="append",
    )
    segment: int = setting(1, "layers trained at a time", least=1, metavar="K")
    overlap: int = setting(
        0, "of these, how many were in the segment before as well", least=0, metavar="N"
    )
    order: str = setting(
        "up",
        "from the input up, each layer to its end; or in rounds, up or shuffled",
        choices=("up", "round-robin", "random-robin"),
    )
    rounds: int | None = setting(
        None, "how many, the epochs shared out among them (default: one an epoch)", least=1
    )
    keep: str = setting(
        "auto",
        "what frozen layers give; auto: in memory where it fits, computed in every epoch elsewhere",
        choices=("auto", "memory", "disk", "none"),
    )
    keep_gib: float | None = setting(
        None, "of that at most (default: 1 in memory, 16 on disk)", above=0, metavar="GIB"
    )
    forward_dropout: float = setting(
        0.0, "of what enters a stage, in its first epoch (0.8 in the source)", least=0, most=0.99
    )
    forward_fade: float = setting(0.95, "factor on it, an epoch", above=0, most=1)
    backward_dropout: float = setting(
        0.0,
        "of the gradient from the decision block (0.3 to 0.6 in the source)",
        least=0,
        most=0.99,
    )
    lr_by_depth: float | None = setting(
        None, "factor on the learning rate, a stage (default: 0.8; transfer: above 1)", above=0
    )
    decay_by_depth: float | None = setting(
        None, "factor on the weight decay, a stage (default: 1.15; transfer: 1)", above=0
    )
    epochs_by_depth: float | None = setting(
        None, "factor on the epochs, a stage (default: 1; transfer: above 1)", above=0
    )
    grow: int | None = setting(
        None,
        "stop when so many stages brought no better validation accuracy, and give the shallower "
        "network with its decision block",
        least=1,
        metavar="N",
    )
    decision_convs: int | None = setting(
        None, "convolutions of a decision block (default: 0 to 2, by the map)", least=0
    )
    decision_channels: int | None = setting(
        None, "their channels (default: as the layer, 32 to 128)", least=1
    )
    decision_pool: int | None = setting(
        None, "side of the squares that are averaged before them (default: 1)", least=1
    )
    memory_budget: str | float | int | None = setting(
        None,
        "the most that the training may hold: a share of a plain step (0.3, 30%), or bytes "
        "(400MB); decision blocks, batches and activations are made smaller until it does",
        metavar="SIZE",
    )
    plan: bool = setting(
        False, "say what a step takes in memory and time, a stage and each other way; then stop"
    )


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
    if "memory_budget" in said:
        read_budget(said["memory_budget"])
    return way, said
