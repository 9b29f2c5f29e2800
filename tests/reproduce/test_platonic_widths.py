"""The rules for widths and scales nobody names, at their smallest: every rule is scored."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from dovetail.closed_form.scaling import SCALES
from dovetail.closed_form.settings import USUAL
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]


def test_every_rule_is_scored_and_the_chosen_one_is_ours(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "reproduce"))
    script = runpy.run_path(str(ROOT / "reproduce/platonic_widths.py"))
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["platonic_widths", *where])
    script["main"]()
    (everything, iris, cell) = load_record(output).rows
    assert everything["data"] == "all"
    assert cell["rows"] == 40
    assert all(0.5 < iris[rule] <= 1 for rule in script["RULES"])
    chosen = script["RULES"][script["CHOSEN"]]
    assert [chosen(rows) for rows in (40, 50, 51, 199, 200, 900)] == [100, 100, 25, 99, 100, 100]
    assert script["MOST"] == USUAL


def test_every_scaling_is_scored_in_every_unit(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "reproduce"))
    script = runpy.run_path(str(ROOT / "reproduce/platonic_scales.py"))
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["platonic_scales", *where])
    script["main"]()
    (iris,) = load_record(output).rows
    assert all(0.7 < iris[f"{by}, worst unit"] <= iris[by] for by in SCALES)
