"""Put parts that fit to use: for another domain, architecture, device, class or task."""

from __future__ import annotations

import argparse
from functools import partial

from dovetail.cli import common
from dovetail.cli.parsing import branches
from dovetail.settings.reuse import USES

EXAMPLE = f"dovetail reuse {USES['domain'][1]}"

_ALONE = ("resume", "checkpoint_seconds", "patience")
"""What a trial, which fine-tunes for a moment, has not."""


def add(parser: argparse.ArgumentParser) -> None:
    """A sub-command for each use."""
    uses = branches(parser, "uses", dest="use")
    for name, (settings, example) in USES.items():
        words = (settings.__doc__ or "").partition("\n")[0]
        uses.add_parser(
            name,
            help=words[0].lower() + words[1:].rstrip("."),
            description=words,
            epilog=f"example:\n  dovetail reuse {example}",
            fill=partial(_fill, name),
        )


def _fill(use: str, parser: argparse.ArgumentParser) -> None:
    if use in ("domain", "replace"):
        words = "whose halves NETWORK.front and NETWORK.head are shelved"
        parser.add_argument("network", help=words)
    elif use in ("extend", "transfer"):
        parser.add_argument("head", help="the head that is taught or ready")
    parser.add_argument("task", help="digits, mnist~inverted, ..., a folder, or a file")
    if use == "extend":
        parser.add_argument("--front", required=True, help="the front it is taught behind")
    if use == "replace":
        parser.add_argument("--net", help="architecture of the new front: mlp, lenet5, ...")
        parser.add_argument("--from", dest="start", metavar="PART", help="start from this part")
        common.add_set(parser)
    if use == "devices":
        parser.add_argument(
            "--net",
            dest="nets",
            action="append",
            help="a device's architecture; may be repeated",
        )
        parser.add_argument(
            "--from", dest="starts", action="append", metavar="PART", help="a part to start from"
        )
        common.add_set(parser)
    declared = USES[use][0].declared
    hidden = _ALONE if use == "transfer" else ()
    common.add_settings(parser, (one for name, one in declared.items() if name not in hidden))
    common.add_common(parser, name="name on the shelf")


def run(args: argparse.Namespace) -> int:
    """Find the parts, use them, shelve and show."""
    options = common.settings_of(args, USES[args.use][0])
    options |= common.values_of(args, ("net", "start", "nets", "starts", "front"))
    network = getattr(args, "network", None)
    fronts = [network, options.get("front"), *options.get("fronts", ())]
    heads = [getattr(args, "head", None), *options.get("others", ())]
    common.need_halves(fronts, "front", args.shelf)
    common.need_halves(heads, "head", args.shelf)
    common.need_tasks([args.task], args.data)
    from dovetail.jobs import reuse  # torch loads here

    if "args" in args:
        options["args"] = dict(args.args)
    first = args.head if args.use in ("extend", "transfer") else network
    inputs = [args.task] if args.use == "devices" else [first, args.task]
    outcome = getattr(reuse, args.use)(*inputs, **{**options, **common.frame_of(args)})
    return common.show(outcome, args)
