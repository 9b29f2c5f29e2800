"""The reproduction of packing within a budget, at its smallest: it runs, and leaves its record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]


def test_the_script_leaves_its_record(tmp_path):
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "reproduce" / "packing_quality.py"), *where],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    record = load_record(output)
    assert isinstance(record, Evidence)
    packings = {row["packing"] for row in record.rows}
    assert {"entropy rule, c = 6", "4 bits", "within 0.1 points"} <= packings
    assert all(row["ratio"] > 1 for row in record.rows)
