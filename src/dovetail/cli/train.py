"""Train a network on a task, measure it on the test split, and put it on the shelf.

A run that was interrupted goes on where it stopped when the same command is given again.
With --how modular the network is trained module by module: the body on which examples are alike,
the output module on as few labels as one a class.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail train digits --net lenet5 --set norm=batch --epochs 20 --name lenet"
MODULAR_EXAMPLE = (
    "dovetail train digits --how modular --set unit=true --labels-per-class 1 --supervision pairs"
)


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "task", help="digits, mnist, ..., a folder of images, or a .csv, .parquet or .npz file"
    )
    common.add_task_options(parser)
    parser.add_argument("--net", help="mlp, lenet5, resnet8, resnet20, ... (default: lenet5)")
    common.add_set(parser)
    parser.add_argument("--from", dest="start", metavar="PART", help="start from this part instead")
    parser.add_argument(
        "--how", default="end-to-end", help="way to train: end-to-end (default) or modular"
    )
    parser.add_argument("--name", help="name on the shelf (default: net and task)")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--optimiser", default="sgd", help="sgd, adam or adamw")
    parser.add_argument("--lr", type=float, default=0.1, help="peak learning rate")
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--schedule", default="one-cycle", help="one-cycle, cosine or constant")
    parser.add_argument("--clip", type=float, help="scale a longer gradient down to this length")
    parser.add_argument("--patience", type=int, help="stop after so many epochs without progress")
    parser.add_argument("--augment", help="such as flip,shift:2,cutout:4,rotate:10")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="how often an unfinished run is saved (default: 10)",
    )
    parser.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on with an unfinished run of the same settings",
    )
    parser.add_argument(
        "--keep-epochs",
        type=int,
        metavar="N",
        help="also shelve the network of every Nth epoch, as NAME.epoch03",
    )
    _add_modular(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def _add_modular(parser: argparse.ArgumentParser) -> None:
    """Options that only training in modules has; without a value they are left to the trainer."""
    group = parser.add_argument_group("with --how modular", f"such as: {MODULAR_EXAMPLE}")
    group.add_argument("--objective", help="proxy of the body: al (default), utal, cts, nmse, ...")
    group.add_argument(
        "--at",
        action="append",
        metavar="POINT",
        help="cut here, in the order of the network; may be repeated (default: before the last "
        "layer)",
    )
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


def run(args: argparse.Namespace) -> int:
    """Train and shelve."""
    from dovetail.flows.train import OF_MODULAR, train

    given = {name: getattr(args, name) for name in OF_MODULAR}
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
        resume=args.resume,
        checkpoint_seconds=args.checkpoint_seconds,
        augment=args.augment,
        epochs=args.epochs,
        batch_size=args.batch_size,
        optimiser=args.optimiser,
        lr=args.lr,
        weight_decay=args.weight_decay,
        schedule=args.schedule,
        patience=args.patience,
        device=args.device,
        modules=args.modules,
        keep_epochs=args.keep_epochs,
        **({} if args.clip is None else {"clip": args.clip}),
        **{name: value for name, value in given.items() if value is not None},
    )
    return common.show(outcome, args)
