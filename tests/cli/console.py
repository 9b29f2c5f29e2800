"""Running the command line: in this process for speed, in one of its own for the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import PATIENCE

from dovetail.cli.main import main

COMMAND = (sys.executable, "-c", "from dovetail.cli.main import main; raise SystemExit(main())")
"""What the console script does, whether or not its folder is on the path."""


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", **more}


def spawn(*words: object, folder: Path, flags: tuple[str, ...] = (), **more: str) -> Said:
    """Run a command in a process of its own."""
    python, *rest = COMMAND
    done = subprocess.run(
        [python, *flags, *rest, *map(str, words)],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def call(capsys: Any, *words: object) -> Said:
    """Run a command in this process."""
    capsys.readouterr()
    try:
        code = main([str(word) for word in words])
    except SystemExit as stop:  # argparse leaves this way
        code = int(stop.code or 0)
    said = capsys.readouterr()
    return Said(code, said.out, said.err)
