"""A tour on the bundled digits: train small networks, cut and shelve them, join their parts.

Shows that parts whose shapes match can still mean different things, that the contract says so
before anything runs, and what it costs to ignore it.  Ends with a report to open in a browser.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common

__all__ = ["EXAMPLE", "add", "run"]

EXAMPLE = "dovetail demo --folder demo"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--folder", type=common.place, default="demo", help="where shelf, records and report go"
    )
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the tour, telling it as it goes."""
    from dovetail.core.settings import need_least

    need_least("epochs", args.epochs, 1)
    import torch

    from dovetail.core.views import View
    from dovetail.jobs.demo import demo
    from dovetail.report.terminal import print_view

    torch.set_num_threads(1)  # for networks this small a second thread costs more than it brings

    def tell(view: View) -> None:
        if not args.json:
            print_view(view)

    return common.show(demo(args.folder, epochs=args.epochs, seed=args.seed, tell=tell), args)
