"""Adapt a part to few labels: by inference in the linearised network, a probe, or fine-tuning.

Each way is fitted to the same labels, drawn from the training split, and measured on the test
split.  The one that does best on the validation split goes on the shelf.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail adapt low.front 'digits[7,8,9]' --labels-per-class 1,3,10 --shelf demo/shelf"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("part", help="a part on the shelf, or its folder")
    parser.add_argument(
        "task",
        help="digits, mnist, ..., a folder or a file; or made of one, as 'digits[7,8,9]'",
    )
    parser.add_argument(
        "--labels-per-class",
        "--labels",
        dest="labels",
        type=_counts,
        default=(),
        metavar="K",
        help="labelled examples a class, or of numbers in all (default: 10, or 50); several, with "
        "commas, to see how accuracy grows",
    )
    parser.add_argument(
        "--how",
        type=common.words,
        default=("all",),
        metavar="WAYS",
        help="linearized, probe, finetune, some of them with commas, or all (default)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the labels drawn, and all else")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="draw labels N times (default: 1)"
    )
    parser.add_argument(
        "--params",
        type=common.words,
        metavar="PATTERNS",
        help="parameters that may move, such as 'fc2.*,fc1.*' (default: all)",
    )
    parser.add_argument(
        "--at", metavar="POINT", help="cut point to take features at (default: before the head)"
    )
    parser.add_argument(
        "--prior", choices=("evidence", "layers"), help="one scale for all weights, or one a layer"
    )
    parser.add_argument("--method", help="auto (default), laplace, svi, map; function, cg, ...")
    parser.add_argument(
        "--link",
        choices=("auto", "mean", "probit", "mc"),
        help="how uncertainty enters probabilities",
    )
    parser.add_argument(
        "--temperature",
        choices=("none", "validation"),
        help="fit one to the labels of the validation split (default: none)",
    )
    parser.add_argument(
        "--keep", metavar="WAY", help="shelve this way instead of the best on validation, or none"
    )
    parser.add_argument("--name", help="name on the shelf (default: part and task)")
    parser.add_argument(
        "--plan", action="store_true", help="say what inference would take, and stop"
    )
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Adapt and show."""
    from dovetail.cli.early import need_parts, need_tasks

    need_parts([args.part], args.shelf)
    need_tasks([args.task], args.data)
    from dovetail.jobs.adapt import adapt

    outcome = adapt(
        args.part,
        args.task,
        how=args.how,
        labels=args.labels,
        draws=args.seeds,
        params=args.params,
        at=args.at,
        prior=args.prior,
        method=args.method,
        link=args.link,
        temperature=args.temperature,
        keep=args.keep,
        name=args.name,
        plan=args.plan,
        seed=args.seed,
        shelf=args.shelf,
        data=args.data,
        task_options=common.task_options(args),
    )
    return common.show(outcome, args)


def _counts(text: str) -> tuple[int, ...]:
    found = common.words(text)
    if not found or not all(word.isdecimal() and int(word) > 0 for word in found):
        raise argparse.ArgumentTypeError(f"expected counts such as 10 or 1,3,10, got {text!r}")
    return tuple(int(word) for word in found)
