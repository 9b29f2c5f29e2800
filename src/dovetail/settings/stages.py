"""What training layer by layer, and in partitions, lets people choose."""

from __future__ import annotations

from dovetail.core.settings import setting
from dovetail.settings.loop import LOSS_NAMES, Steps


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


class Partitioned(Steps):
    """A few partitions, each under a decision block of its own, at once or one after the other."""

    partitions: int | None = setting(
        None, "how many (default: 2, or as many as --at makes)", least=2, metavar="P"
    )
    parallel: bool = setting(
        False,
        "a process for each (torchrun --standalone --nproc-per-node 2 -m dovetail train ...); in "
        "one process the outcome is the same",
    )
    order: str = setting(
        "at-once",
        "each step on what the partition below hands on; or up, each to its end; or in rounds",
        choices=("at-once", "up", "round-robin"),
    )
    rounds: int | None = setting(
        None, "how many, the epochs shared out among them (default: one an epoch)", least=1
    )
    at: tuple[str, ...] | None = setting(
        None,
        "partitions end here; repeated, in the order of the network (default: where the slowest "
        "takes least, by timing)",
        metavar="POINT",
        many="append",
    )
    queue: int = setting(2, "batches that wait to be sent, and to be used, at most", least=1)
    replicas: int = setting(
        1, "processes that share the rows of each batch in every partition", least=1, metavar="R"
    )
    timeout: float = setting(
        60.0, "how long to wait for a sign of life of another process", above=0, metavar="SECONDS"
    )
    loss: str | None = setting(
        None, "of classes (default: cross-entropy)", choices=LOSS_NAMES, metavar="LOSS"
    )
    lr_by_depth: float = setting(0.5, "factor on the learning rate, a partition", above=0)
    decay_by_depth: float = setting(0.5, "factor on the weight decay, a partition", above=0)
    decision_convs: int | None = setting(
        None, "convolutions of a decision block (default: 0 to 2, by the map)", least=0
    )
    decision_channels: int | None = setting(
        None, "their channels (default: as the layer, 32 to 128)", least=1
    )
    decision_pool: int | None = setting(
        None, "side of the squares that are averaged before them (default: 1)", least=1
    )
    packing: str | None = setting(
        None,
        "how activations are handed on (default: as they are)",
        choices=("float16", "packed"),
    )
    plan: bool = setting(
        False, "say the balance, the bytes a step and the expected speed, train nothing"
    )
    link: str | None = setting(
        None,
        "how fast processes reach each other, such as 100Mbit: the cuts allow for it",
        metavar="SPEED",
    )
