"""What might improve platonic projections, at its smallest: every variant runs and is judged."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest

from dovetail.core.evidence import Evidence
from dovetail.core.records import load_record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "reproduce"))
    return runpy.run_path(str(ROOT / "reproduce/platonic_beyond.py"))


def test_every_variant_is_judged(tmp_path, monkeypatch, script):
    output = tmp_path / "found.json"
    where = ["--scale", "tiny", "--kept", str(tmp_path / "kept"), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["platonic_beyond", *where])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "FastICA did not converge")
        script["main"]()
    record = load_record(output)
    assert isinstance(record, Evidence)
    judged = [row for row in record.rows if "gain" in row]
    assert {row["kind"] for row in judged} == {
        row["kind"] for row in record.rows if "variant" not in row
    }
    assert len(judged) == 29
    assert all(10 < row["test"] <= 100 for row in judged)


def test_plain_is_what_the_recurrence_gives(script):
    """With one try, its settings of the same seed aside."""
    import torch
    from platonic import variants

    from dovetail.closed_form.platonic import platonic
    from dovetail.closed_form.rows import HeldRows

    x = torch.randn(200, 20, generator=torch.Generator().manual_seed(0)).double()
    rows = HeldRows(x, x[:, :2].sign())
    # Neither layer is random here, so both must be the same network.
    way = variants.Way((30, 12), second=variants.partial(variants.by_name, "pca"))
    ours = variants.through(way.fitted(rows, 0), x)
    net = platonic(rows, (30, 12), projections=("sorted-pca", "pca"), solver="eigen")
    torch.testing.assert_close(ours, net(x), atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("gains", "helps"),
    [
        ([(0.2, 0.05), (0.3, 0.1)], True),
        ([(0.2, 0.05), (0.3, 0.2)], False),
        ([(0.05, 0.01), (0.3, 0.1)], False),
        ([(0.5, 0.1), (-0.1, 0.1)], True),
        ([(0.5, 0.1), (-0.3, 0.1)], False),
    ],
)
def test_the_rule(script, gains, helps):
    assert script["helps"](gains) is helps
