"""Join parts end to end without training.  Refuses what was not made to fit, and says what helps.

A refusal lists every reason and the repairs that apply; with --task also what they reach and cost.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.join import Join

EXAMPLE = """\
dovetail join lenet.front lenet.back --task digits --name lenet-again
  dovetail join lenet.front other.back --task digits --explain
  dovetail join lenet.front other.back --task digits --repair stitch --name both"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("parts", nargs="+", metavar="PART", help="parts, front first")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument(
        "--explain",
        action="store_true",
        help="tell why not and what each repair would cost, measured on the validation split",
    )
    for name, one in Join.declared.items():
        common.add_settings(ways if name == "repair" else parser, [one])
    common.add_common(parser, name="put the joined network on the shelf", seed=False)


def run(args: argparse.Namespace) -> int:
    """Join, explain or repair; measure, shelve."""
    from dovetail.core.errors import ContractError, SettingsError

    options = common.settings_of(args, Join)
    if (args.explain or args.repair) and (args.force or args.adapters):
        raise SettingsError("--explain and --repair need neither --force nor --adapters")
    if args.explain and (args.name or args.norms):
        raise SettingsError("--explain measures all norms and shelves nothing; see --repair")
    common.need_parts([*args.parts, args.reference], args.shelf)
    common.need_tasks([args.task], args.data)
    from dovetail.jobs import join  # torch loads here

    do = join.explain if args.explain else join.mend if args.repair else join.join
    try:
        return common.show(do(args.parts, **options, **common.frame_of(args)), args)
    except join.JoinRefused as refused:
        common.show(refused.outcome, args)  # as data, and the record; people read the message
        if args.json:
            raise
        raise ContractError(
            f"{refused.marked}\n\n{common.as_text(refused.repairs)}".rstrip()
        ) from None
