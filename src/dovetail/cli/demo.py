"""A tour on the bundled digits: train small networks, cut and shelve them, join their parts.

Shows that parts whose shapes match can still mean different things, that the contract says so
before anything runs, and what it costs to ignore it.  Ends with a report to open in a browser.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.settings.common import Common
from dovetail.settings.show import Demo

EXAMPLE = "dovetail demo --folder demo"


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    common.add_settings(parser, [*Demo.declared.values(), Common.declared["seed"]])
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run the tour, telling it as it goes."""
    options = common.settings_of(args, Demo) | common.values_of(args, ["seed"])
    import torch

    from dovetail.core.views import View
    from dovetail.jobs.demo import demo
    from dovetail.report.terminal import print_view

    torch.set_num_threads(1)  # for networks this small a second thread costs more than it brings

    def tell(view: View) -> None:
        if not args.json:
            print_view(view)

    return common.show(demo(**options, tell=tell), args)
