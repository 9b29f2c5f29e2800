"""The reproductions of packing, at their smallest: they run, and leave records that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import run_file

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "records"),
    [
        ("packing_bits", {"packing_bits", "packing_floor"}),
        ("packing_differences", {"packing_differences"}),
        ("packing_entropy", {"packing_entropy", "packing_rates"}),
    ],
)
def test_a_script_leaves_its_records(tmp_path, script, records):
    kept, output = tmp_path / "kept", tmp_path / f"{script}.json"
    where = ["--scale", "tiny", "--kept", str(kept), "--output", str(output)]
    run_file(ROOT / "reproduce" / f"{script}.py", *where, folder=tmp_path)
    assert {file.stem for file in tmp_path.glob("*.json")} == records
    for name in records:
        record = load_record(tmp_path / f"{name}.json")
        assert isinstance(record, Evidence)
        assert len(record.rows) >= 4
        assert record.settings["scale"] == "tiny"
