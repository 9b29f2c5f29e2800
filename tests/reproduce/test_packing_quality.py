"""The reproduction of packing within a budget, at its smallest: it runs, and leaves its record."""

from __future__ import annotations

from pathlib import Path

from forked import run_file

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]


def test_the_script_leaves_its_record(tmp_path):
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    run_file(ROOT / "reproduce" / "packing_quality.py", *where, folder=tmp_path)
    record = load_record(output)
    assert isinstance(record, Evidence)
    packings = {row["packing"] for row in record.rows}
    assert {"entropy rule, c = 6", "4 bits", "within 0.1 points"} <= packings
    assert all(row["ratio"] > 1 for row in record.rows)
