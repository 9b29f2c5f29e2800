"""Train a network on a task, measure it on the test split, and put it on the shelf.

A run that was interrupted goes on where it stopped when the same command is given again.
With --how modular the network is trained module by module: the body on which examples are alike,
the output module on as few labels as one a class.  With --how compatible a network is trained on
each of several tasks, so that the front of one works with the head of another.  With --how
self-supervised the front of a network is trained without any labels.  With --how closed-form a
perceptron is solved for, layer by layer, without steps: seconds, and no rate to choose.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail train digits --net lenet5 --set norm=batch --epochs 20 --name lenet"
MODULAR_EXAMPLE = (
    "dovetail train digits --how modular --set unit=true --labels-per-class 1 --supervision pairs"
)
COMPATIBLE_EXAMPLE = (
    "dovetail train digits 'digits~inverted' --how compatible --by dcc,rp,iiw --at conv2 "
    "--set norm=batch --name pair"
)
AVERAGING_EXAMPLE = (
    "torchrun --standalone --nproc-per-node 2 -m dovetail train mnist --average-every 50"
)
CLOSED_FORM_EXAMPLE = "dovetail train digits --how closed-form --set hidden=[300] --name solved"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "task",
        nargs="+",
        help="digits, mnist, ..., a folder of images, or a .csv, .parquet or .npz file; or made of "
        "one, as 'digits[0,1,2]~rot90'; several with --how compatible",
    )
    common.add_task_options(parser)
    parser.add_argument("--net", help="mlp, lenet5, resnet8, resnet20, ... (default: lenet5)")
    common.add_set(parser)
    parser.add_argument(
        "--from",
        dest="start",
        action="append",
        metavar="PART",
        help="start from this part instead; with several tasks one for all, or one for each",
    )
    parser.add_argument(
        "--how",
        default="end-to-end",
        help="way to train: end-to-end (default), modular, compatible, self-supervised or "
        "closed-form",
    )
    parser.add_argument("--name", help="name on the shelf (default: net and task)")
    # Without defaults here, so that a flag that was given where it means nothing can be refused.
    parser.add_argument("--epochs", type=int, help="passes over the data (default: 20)")
    parser.add_argument("--batch-size", type=int, help="examples a step (default: 64)")
    parser.add_argument("--optimiser", help="sgd (default), adam or adamw")
    parser.add_argument("--lr", type=float, help="peak learning rate (default: 0.1)")
    parser.add_argument("--weight-decay", type=float, help="(default: 0.0005)")
    parser.add_argument("--schedule", help="one-cycle (default), cosine or constant")
    parser.add_argument("--clip", type=float, help="scale a longer gradient down to this length")
    parser.add_argument(
        "--patience",
        type=int,
        help="stop after so many epochs, or layers with --how closed-form, without progress",
    )
    parser.add_argument("--augment", help="such as flip,shift:2,cutout:4,rotate:10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="auto (default), cpu, cuda, ...")
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        metavar="SECONDS",
        help="how often an unfinished run is saved (default: 10)",
    )
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        help="go on with an unfinished run of the same settings (default), or begin anew",
    )
    parser.add_argument(
        "--keep-epochs",
        type=int,
        metavar="N",
        help="also shelve the network of every Nth epoch, as NAME.epoch03",
    )
    parser.add_argument(
        "--at",
        action="append",
        metavar="POINT",
        help="cut here (default: before the last layer); repeated, with --how modular in the order "
        "of the network, with --how compatible a point for each task",
    )
    parser.add_argument(
        "--pretext",
        help="of compatible and self-supervised training: rotation (default), jigsaw or views",
    )
    _add_averaging(parser)
    _add_modular(parser)
    _add_compatible(parser)
    _add_closed_form(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def _add_averaging(parser: argparse.ArgumentParser) -> None:
    """Options of a training in several processes."""
    group = parser.add_argument_group(
        "in several processes", f"each trains on its share of the examples: {AVERAGING_EXAMPLE}"
    )
    group.add_argument(
        "--average-every",
        type=int,
        metavar="K",
        help="go on from the mean of all processes' weights, sent packed, after every K steps",
    )
    group.add_argument(
        "--extra-bits", type=int, metavar="C", help="bits a weight beyond its entropy (default: 6)"
    )


def _add_modular(parser: argparse.ArgumentParser) -> None:
    """Options that only training in modules has; without a value they are left to the trainer."""
    group = parser.add_argument_group("with --how modular", f"such as: {MODULAR_EXAMPLE}")
    group.add_argument("--objective", help="proxy of the body: al (default), utal, cts, nmse, ...")
    group.add_argument(
        "--labels-per-class",
        type=int,
        metavar="K",
        help="labelled examples a class for the output module (default: all)",
    )
    group.add_argument(
        "--supervision", help="what the body is told: labels (default), or pairs only"
    )
    group.add_argument("--pairs", type=int, metavar="N", help="how many pairs (default: examples)")
    group.add_argument("--head-loss", help="cross-entropy (default), mse or hinge")
    group.add_argument("--head-epochs", type=int, help="epochs of the output module")
    group.add_argument(
        "--modules",
        action="store_true",
        help="also shelve the modules, as NAME.module1 and NAME.head",
    )


def _add_compatible(parser: argparse.ArgumentParser) -> None:
    """Options that only training for compatibility has."""
    group = parser.add_argument_group("with --how compatible", f"such as: {COMPATIBLE_EXAMPLE}")
    group.add_argument(
        "--by",
        type=common.words,
        metavar="A,B",
        help="what makes the parts fit: any of dcc (a shared head for the common classes), rp (a "
        "shared head for the pretext), iiw (identical initial weights); default: all",
    )
    group.add_argument(
        "--scheme", help="joint (default), or incremental: one network after the other"
    )
    group.add_argument(
        "--channels", type=int, metavar="N", help="what adapters map the channels at the cut to"
    )
    group.add_argument(
        "--auxiliary",
        action="append",
        metavar="HEAD",
        help="train against this shelved head, NAME.dcc or NAME.rp of an earlier training, or "
        "rp=ANY.NAME; frozen with --scheme incremental; may be repeated",
    )
    group.add_argument(
        "--common", type=common.words, metavar="A,B", help="classes of dcc (default: all shared)"
    )
    group.add_argument(
        "--project-conflicts",
        action="store_true",
        help="take what is opposed out of the gradients before they are added",
    )


def _add_closed_form(parser: argparse.ArgumentParser) -> None:
    """Options that only fitting in closed form has."""
    group = parser.add_argument_group("with --how closed-form", f"such as: {CLOSED_FORM_EXAMPLE}")
    group.add_argument(
        "--projection",
        type=common.words,
        metavar="A,B",
        help="where the targets of the layers come from: auto (default), random, pca, sorted-pca, "
        "deterministic, ...; one, or one for each layer",
    )
    group.add_argument(
        "--tries", type=int, metavar="N", help="random projections tried for a layer (default: 5)"
    )
    group.add_argument(
        "--ridge", type=_number_or_auto, metavar="X", help="penalty, or auto (default)"
    )
    group.add_argument("--solver", help="auto (default), cholesky, eigen, pinv or lstsq")
    group.add_argument(
        "--target-scale", type=float, metavar="X", help="scale of the layers' targets (default: 1)"
    )
    group.add_argument(
        "--label-weight",
        type=_number_or_auto,
        metavar="X",
        help="weight of the labels in the layers' targets, or auto (default)",
    )
    group.add_argument(
        "--ema", type=float, metavar="X", help="weigh labels by the errors so far, with this decay"
    )
    group.add_argument(
        "--rank", type=int, metavar="R", help="cut hidden layers to this rank (default: none)"
    )
    group.add_argument(
        "--precision", help="of the weights on the shelf: float32 (default) or float64"
    )


def _number_or_auto(text: str) -> float | str:
    return text if text == "auto" else float(text)


def run(args: argparse.Namespace) -> int:
    """Train and shelve."""
    from dovetail.cli.early import need_parts, need_tasks
    from dovetail.jobs.train_ways import OPTIONS, check_asked

    options = {name: getattr(args, name) for name in ("patience", *OPTIONS)}
    check_asked(
        args.how,
        options,
        tasks=len(args.task),
        starts=len(args.start or ()),
        new_net=args.net is not None or bool(args.args),
    )
    need_tasks(args.task, args.data)
    if args.start:
        need_parts(args.start, args.shelf)
    from dovetail.jobs.train import train  # torch loads here

    outcome = train(
        args.task,
        task_options=common.task_options(args),
        net=args.net,
        args=dict(args.args),
        start=args.start,
        how=args.how,
        name=args.name,
        shelf=args.shelf,
        data=args.data,
        seed=args.seed,
        **options,
    )
    return common.show(outcome, args) if outcome.view else 0  # only one of several processes shows
