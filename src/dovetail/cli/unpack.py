"""Unpack to plain tensors: a packed part becomes a plain one, a .dovepack file a .safetensors file.

The weights stay what packing made of them; what was rounded away does not come back.
"""

from __future__ import annotations

import argparse

from dovetail.cli import common
from dovetail.cli.pack import add_places, need_source, refuse
from dovetail.settings.pack import Unpack

EXAMPLE = """\
dovetail unpack lenet-packed --name lenet-plain
  dovetail unpack weights.dovepack --to weights.safetensors
  dovetail unpack --all --to plain-shelf"""


def add(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    every = "the latest version of every part that is packed"
    add_places(parser, "a .dovepack file", every, "-unpacked")
    common.add_settings(parser, [Unpack.declared["most_gigabytes"]])
    common.spells(parser, most_bytes="--most-gigabytes; in bytes it is {}")
    common.add_shelf(parser)
    parser.set_defaults(shelf=None)  # so that one that says nothing can be refused
    common.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Unpack one thing, or a shelf."""
    need_source(args, "unpack")
    if args.all_parts:
        refuse(args, ("name", "replace", "most_gigabytes"), "cannot be used with --all")
    options = common.settings_of(args, Unpack)
    from dovetail.jobs.pack import unpack, unpack_all  # torch loads here

    do, inputs = (unpack_all, []) if args.all_parts else (unpack, [args.part])
    return common.show(do(*inputs, **options, **common.frame_of(args)), args)
