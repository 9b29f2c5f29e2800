"""What adapting to few labels lets people choose."""

from __future__ import annotations

from dovetail.core.settings import Settings, setting


class Adapt(Settings):
    """Adapt a part to few labels, in several ways."""

    labels: tuple[int | str, ...] = setting(
        (),
        "labelled examples a class, or of numbers in all (default: 10, or 50); several, with "
        "commas, to see how accuracy grows; and for all there are",
        least=1,
        choices=("all",),
        metavar="K",
        flag="--labels-per-class",
    )
    how: tuple[str, ...] = setting(
        ("all",), "linearized, probe, finetune, some of them with commas, or all", metavar="WAYS"
    )
    draws: int = setting(1, "draw labels N times", least=1, metavar="N", flag="--seeds")
    params: tuple[str, ...] | None = setting(
        None,
        "parameters that may move, such as 'fc2.*,fc1.*' (default: all)",
        metavar="PATTERNS",
    )
    at: str | None = setting(
        None, "cut point to take features at (default: before the head)", metavar="POINT"
    )
    frozen: str | None = setting(
        None,
        "of fine-tuning classes: layers up to this cut point do not move, and run once",
        metavar="POINT",
    )
    around: str = setting(
        "auto",
        "weights that classes are linearised around: of a fitted head, again where layers below it "
        "moved, as the part has them (start), or what labels held out say is best",
        choices=("auto", "head", "again", "start"),
    )
    mean: str = setting(
        "auto",
        "where the prior is centred, by evidence unless said",
        choices=("auto", "network", "constant", "zero", "origin"),
    )
    prior: str = setting(
        "evidence", "one scale for all weights, or one a layer", choices=("evidence", "layers")
    )
    method: str = setting(
        "auto",
        "how inference is done, of classes by the first three, of numbers by the last",
        choices=("auto", "laplace", "svi", "map", "function", "parameter", "cg"),
    )
    link: str = setting(
        "auto",
        "how uncertainty enters probabilities",
        choices=("auto", "mean", "probit", "mc"),
    )
    temperature: str = setting(
        "none", "fit one to the labels of the validation split", choices=("none", "validation")
    )
    keep: str | None = setting(
        None, "shelve this way instead of the best on validation, or none", metavar="WAY"
    )
    plan: bool = setting(False, "say what inference would take, and stop")
