"""Count the hops from a command to its arithmetic, and the house: files and lines of code.

A hop is a frame of ours on the stack, the command's own ``run`` included, when the first linear
algebra is done on data: the first call of a product, a convolution or a factorisation of torch or
numpy.  What ``parts`` runs to learn shapes (meta tensors, symbols, an example) is no data and does
not count; networks of its zoo that others run do.  :func:`sys.setprofile` sees those calls.
Products written as ``@`` it does not see; they come later in all three commands, for a network
runs first.  A line of code is one that is neither empty, nor a comment, nor in a docstring.

python scripts/hops.py           # prints numbers
python scripts/hops.py --frames  # and the frames
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import dovetail
from dovetail.cli.main import main

HOUSE = Path(dovetail.__file__).parent
ALGEBRA = {
    *("linear", "conv1d", "conv2d", "conv3d", "matmul", "mm", "bmm", "addmm", "einsum", "dot"),
    *("linalg_qr", "linalg_svd", "linalg_eigh", "linalg_cholesky", "linalg_lstsq", "cholesky_ex"),
}
RUNS = ("__call__", "forward")
COMMANDS = {
    "train": "train digits --net mlp --epochs 1 --name net",
    "rank": "rank digits --part net",
    "adapt": "adapt net digits --how probe --labels-per-class 5 --keep none",
}


def hops(words: str) -> list[str]:
    """The frames of ours, from the command to its first arithmetic, as ``file: function``."""
    stack: list[str] = []

    def watch(frame: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or getattr(called, "__name__", "") not in ALGEBRA:
            return
        ours = []
        at: FrameType | None = frame
        while at is not None:
            file = Path(at.f_code.co_filename)
            if file.is_relative_to(HOUSE):
                ours.append((file.relative_to(HOUSE), at.f_code.co_name))
            at = at.f_back
        by_parts = any(file.parts[0] == "parts" and name not in RUNS for file, name in ours)
        if by_parts or any(name == "<module>" for _, name in ours):
            return
        sys.setprofile(None)
        stack.extend(f"{file}: {name}" for file, name in ours)

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        sys.setprofile(watch)
        try:
            code = main(words.split())
        finally:
            sys.setprofile(None)
    if code:
        raise SystemExit(f"'{words}' failed")
    command = f"cli/{words.split()[0]}.py: run"
    return stack[: stack.index(command) + 1][::-1]


def lines_of_code(source: str) -> int:
    """Lines that are neither empty, nor a comment, nor part of a docstring.

    >>> lines_of_code('def f():\\n    \\"\\"\\"Says.\\"\\"\\"\\n\\n    return 1  # one\\n')
    2
    """
    said: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if alone and isinstance(node.value.value, str):
            said.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(n not in said and not line.strip().startswith(("#",)) and bool(line.strip())
               for n, line in lines)  # fmt: skip


def run() -> None:
    """Print the counts."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, words in COMMANDS.items():
            frames = hops(words)
            print(f"{name}: {len(frames)} hops")
            if "--frames" in sys.argv:
                print(*(f"    {frame}" for frame in frames), sep="\n")
        os.chdir("/")
    files = sorted(HOUSE.rglob("*.py"))
    code = sum(lines_of_code(file.read_text()) for file in files)
    print(f"src: {len(files)} files, {code:,} lines of code without docstrings")


if __name__ == "__main__":
    run()
