"""Files changed at random: each is refused in our words or harmless, after little work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.parts.blueprint import MOST_PIECES

MEGABYTES = 300


def check(folder, count, seed):
    tests = Path(__file__).parents[1]
    known = (str(tests), os.environ.get("PYTHONPATH", ""))
    run = subprocess.run(
        [sys.executable, "-m", "hostile.mutated", str(folder), str(count), str(seed)],
        cwd=tests,
        env=os.environ
        | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, known))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout)
    assert not found["strange"], "\n".join(map(str, found["strange"][0]))
    assert found["megabytes"] < MEGABYTES
    assert found["most pieces"] <= MOST_PIECES + 1
    assert found["loaded"] < count / 2, "hardly anything was changed"


def test_some_mutations(tmp_path):
    check(tmp_path, 150, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 11_000, 2_500))
def test_ten_thousand_mutations(tmp_path, seed):
    check(tmp_path, 2_500, seed)
