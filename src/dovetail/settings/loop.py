"""What every training in steps lets people choose."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting

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
    filter: str | None = setting(
        None,
        "which rows to learn from: inputs:10 (k-filtering before training), features:10 (in each "
        "epoch), loss:0.25 (without the lowest losses); then cap:0.6, after:30, pool:6148",
        metavar="WORDS",
    )
