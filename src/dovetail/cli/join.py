"""Join parts end to end without training.  Refuses what was not made to fit, and says what helps.

A refusal lists every reason and the repairs that apply; with --task also what they reach and cost.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from dovetail.jobs.outcome import Outcome

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = """\
dovetail join lenet.front lenet.back --task digits --name lenet-again
  dovetail join lenet.front other.back --task digits --explain
  dovetail join lenet.front other.back --task digits --repair stitch --name both"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("parts", nargs="+", metavar="PART", help="parts, front first")
    parser.add_argument("--task", help="measure the joined network on this task's test split")
    parser.add_argument(
        "--norms",
        choices=("stored", "batch", "recalibrated"),
        help="statistics that batch norms use (default: stored, or what a repair needs)",
    )
    parser.add_argument("--force", action="store_true", help="join although the spaces differ")
    parser.add_argument(
        "--adapters", action="store_true", help="put 1×1 adapters between different channel counts"
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--explain",
        action="store_true",
        help="tell why not and what each repair would cost, measured on the validation split",
    )
    ways.add_argument(
        "--repair",
        choices=("recalibrate", "stitch", "trained-stitch"),
        help="do it: fitted on the training split; a stitch is shelved as NAME.stitch",
    )
    parser.add_argument(
        "--reference",
        metavar="PART",
        help="a front of the head's space, for the stitch (default: one that is on the shelf)",
    )
    parser.add_argument(
        "--epochs", type=int, default=5, help="of a stitch that is trained (default: 5)"
    )
    parser.add_argument("--name", help="put the joined network on the shelf")
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Join, explain or repair; measure, shelve."""
    from dovetail.cli.early import need_parts, need_tasks
    from dovetail.core.errors import ContractError

    _refuse_both(args)
    need_parts([*args.parts, args.reference], args.shelf)
    need_tasks([args.task], args.data)
    from dovetail.jobs.join import JoinRefused  # torch loads here

    try:
        return common.show(_outcome(args), args)
    except JoinRefused as refused:
        common.show(refused.outcome, args)  # as data, and the record; people read the message
        if args.json:
            raise
        raise ContractError(
            f"{refused.marked}\n\n{common.as_text(refused.repairs)}".rstrip()
        ) from None


def _refuse_both(args: argparse.Namespace) -> None:
    from dovetail.core.errors import SettingsError

    if (args.explain or args.repair) and (args.force or args.adapters):
        raise SettingsError("--explain and --repair need neither --force nor --adapters")
    if args.explain and (args.name or args.norms):
        raise SettingsError("--explain measures all norms and shelves nothing; see --repair")


def _outcome(args: argparse.Namespace) -> Outcome:
    from dovetail.jobs.join import explain, join
    from dovetail.jobs.mend import mend

    where = {
        "task": args.task,
        "reference": args.reference,
        "epochs": args.epochs,
        "shelf": args.shelf,
        "data": args.data,
        "task_options": common.task_options(args),
    }
    if args.explain:
        return explain(args.parts, **where)
    if args.repair:
        return mend(args.parts, args.repair, norms=args.norms, name=args.name, **where)
    return join(
        args.parts,
        norms=args.norms or "stored",
        force=args.force,
        adapters=args.adapters,
        name=args.name,
        **where,
    )
