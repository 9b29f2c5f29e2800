"""Put parts that fit to use: for another domain, architecture, device, class or task."""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.cli.parsing import branches

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from typing import Any

    from dovetail.jobs.outcome import Outcome

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail reuse domain pair.digits 'digits~noise0.3'"

_LOOP: dict[str, tuple[Any, str]] = {
    "epochs": (int, "passes over the training images"),
    "batch_size": (int, "examples a step"),
    "optimiser": (str, "sgd, adam or adamw"),
    "lr": (float, "peak learning rate"),
    "weight_decay": (float, ""),
    "schedule": (str, "one-cycle, cosine or constant"),
    "clip": (float, "scale a longer gradient down to this length"),
    "augment": (str, "such as flip,shift:2"),
    "device": (str, ""),
}
"""Options of the loop; without a value they are left to the trainer."""

_RESUMED: dict[str, tuple[Any, str]] = {
    "patience": (int, "stop after so many epochs without progress"),
    "checkpoint_seconds": (float, "how often an unfinished run is saved (default: 10)"),
}
"""Options of uses that train long enough to be gone on with."""


def add(parser: argparse.ArgumentParser) -> None:
    """A sub-command for each use."""
    uses = branches(parser, "uses", dest="use")
    for fill, words, example in (
        (
            _domain,
            "adapt a network's front to unlabelled images of another domain",
            "domain pair.digits 'digits~noise0.3'",
        ),
        (
            _replace,
            "train another front behind a network's head, and say what the switch costs",
            "replace pair.digits digits --net lenet5 --set norm=batch --at conv2 "
            "--auxiliary pair.rp",
        ),
        (
            _devices,
            "train extractors of several architectures with one head",
            "devices digits --net resnet8 --at layer2 --net lenet5 --at conv2 --channels 16 "
            "--name kit",
        ),
        (
            _extend,
            "teach a head more classes behind one front; it stays fit for all others",
            "extend kit.head digits --front kit.resnet8 --epochs 10 --name kit2",
        ),
        (
            _transfer,
            "try a ready head behind candidate fronts, at once and fine-tuned",
            "transfer pair.digits.head digits --fronts pair.digits pair.digits-inverted --epochs 1",
        ),
    ):
        uses.add_parser(
            example.partition(" ")[0],
            help=words,
            description=words[0].upper() + words[1:] + ".",
            epilog=f"example:\n  dovetail reuse {example}",
            fill=fill,
        )


def _every(parser: argparse.ArgumentParser, *, resumed: bool = True) -> None:
    _add_loop(parser, resumed)
    parser.add_argument("--name", help="name on the shelf")
    common.add_task_options(parser)
    common.add_shelf(parser)
    common.add_data(parser)
    common.add_record(parser)
    common.add_json(parser)


def _domain(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    _add_network(parser)
    parser.add_argument("--rp", metavar="HEAD", help="the pretext's head (default: GROUP.rp)")
    parser.add_argument("--pretext", help="what that head was trained for (default: rotation)")
    _add_norms(parser, "batch")


def _replace(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    _add_network(parser)
    parser.add_argument("--net", help="architecture of the new front: mlp, lenet5, resnet8, ...")
    common.add_set(parser)
    parser.add_argument("--from", dest="start", metavar="PART", help="start from this part")
    parser.add_argument("--at", metavar="POINT", help="where the new front ends")
    parser.add_argument(
        "--auxiliary",
        action="append",
        metavar="HEAD",
        help="another frozen head of the same space, NAME.dcc or NAME.rp; may be repeated",
    )
    parser.add_argument("--pretext", help="what NAME.rp was trained for (default: rotation)")
    _add_norms(parser, "stored")


def _devices(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    _add_task(parser)
    parser.add_argument(
        "--net",
        dest="nets",
        action="append",
        help="a device's architecture; repeated, one for each device",
    )
    common.add_set(parser)
    parser.add_argument(
        "--from", dest="starts", action="append", metavar="PART", help="a device's part to start at"
    )
    parser.add_argument(
        "--at", action="append", metavar="POINT", help="where each extractor ends, or all of them"
    )
    parser.add_argument("--channels", type=int, help="what the extractors give (default: 64)")
    parser.add_argument(
        "--by", type=common.words, help="dcc (default), or dcc,rp for a pretext's head beside it"
    )
    parser.add_argument("--pretext", help="rotation (default), jigsaw or views")


def _extend(parser: argparse.ArgumentParser) -> None:
    _every(parser)
    _add_head(parser, "the head that is taught")
    parser.add_argument("--front", required=True, help="the front it is taught behind")
    _add_fronts(parser, "judge it behind these")
    parser.add_argument(
        "--classes", type=common.words, metavar="A,B", help="new ones (default: all of the task)"
    )
    parser.add_argument(
        "--moving", action="store_true", help="train the front too, held in its space by --rp"
    )
    parser.add_argument("--rp", metavar="HEAD", help="with --moving: the pretext's head")
    parser.add_argument("--pretext", help="what that head was trained for (default: rotation)")
    _add_norms(parser, "batch")


def _transfer(parser: argparse.ArgumentParser) -> None:
    _every(parser, resumed=False)
    _add_head(parser, "the head that is ready")
    _add_fronts(parser, "candidates")
    parser.add_argument(
        "--others",
        nargs="+",
        metavar="HEAD",
        help="other heads to compare with, beside a fresh one",
    )
    parser.add_argument(
        "--steps", type=_numbers, metavar="1,10,100", help="measure after so many steps"
    )
    _add_norms(parser, "batch")


def _add_network(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("network", help="whose halves NETWORK.front and NETWORK.head are shelved")
    _add_task(parser)
    parser.add_argument("--head", help="another head than the network's own")


def _add_head(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("head", help=words)
    _add_task(parser)


def _add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", help="digits, mnist~inverted, ..., a folder, or a file")


def _add_fronts(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument(
        "--fronts",
        nargs="+",
        metavar="FRONT",
        help=f"{words} (default: all on the shelf that fit the head)",
    )


def _add_norms(parser: argparse.ArgumentParser, usual: str) -> None:
    parser.add_argument(
        "--norms",
        choices=("stored", "batch", "recalibrated"),
        help=f"statistics that batch norms use (default: {usual})",
    )


def _add_loop(parser: argparse.ArgumentParser, resumed: bool) -> None:
    for name, (kind, words) in (_LOOP | (_RESUMED if resumed else {})).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=words)
    parser.add_argument("--seed", type=int, default=0)
    if resumed:
        parser.add_argument(
            "--resume",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="go on with an unfinished run of the same settings",
        )


def _numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them.

    >>> _numbers("1,10")
    (1, 10)
    """
    found = common.words(text)
    if not all(number.isdecimal() for number in found):
        raise argparse.ArgumentTypeError(f"expected whole numbers such as 1,10, got {text!r}")
    return tuple(map(int, found))


_GIVEN = (
    *("head", "rp", "pretext", "norms", "net", "start", "at", "auxiliary", "nets", "starts"),
    *("channels", "by", "front", "fronts", "classes", "moving", "others", "steps", "name"),
    *("shelf", "data", "seed", "resume", *_LOOP, *_RESUMED),
)
"""What is handed on to the job when it was said."""


def run(args: argparse.Namespace) -> int:
    """Find the parts, use them, shelve and show."""
    from dovetail.cli.early import need_halves, need_tasks
    from dovetail.core.limits import check_loop

    said = {name: value for name, value in vars(args).items() if value is not None}
    check_loop(said, least_epochs=0 if args.use == "transfer" else 1)
    need_halves(
        [said.get("network"), said.get("front"), *said.get("fronts", ())], "front", args.shelf
    )
    need_halves([said.get("head"), *said.get("others", ())], "head", args.shelf)
    need_tasks([args.task], args.data)
    return common.show(_outcome(args), args)


def _outcome(args: argparse.Namespace) -> Outcome:
    from dovetail.jobs import reuse_front, reuse_head

    said = vars(args)
    given = {name: said[name] for name in _GIVEN if said.get(name) is not None}
    given["task_options"] = common.task_options(args)
    if "args" in said:
        given["args"] = dict(args.args)
    match args.use:
        case "domain":
            return reuse_front.domain(args.network, args.task, **given)
        case "replace":
            return reuse_front.replace(args.network, args.task, **given)
        case "devices":
            return reuse_head.devices(args.task, **given)
        case "extend":
            del given["head"]
            return reuse_head.extend(args.head, args.task, **given)
        case _:
            del given["head"]
            return reuse_head.transfer(args.head, args.task, **given)
