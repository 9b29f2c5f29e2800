"""Two processes rank like one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail as dt
from dovetail.ranking.ranker import rank


@pytest.mark.parametrize("by", ["logme", "ridge-loo"])
def test_two_processes_rank_like_one(tmp_path, by):
    script = Path(__file__).with_name("torchrun_rank.py")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*run, str(script), str(tmp_path), by],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [dt.load_record(tmp_path / f"{by}-{i}.json") for i in (0, 1)]
    nets = {f"{width} wide": dt.build("mlp", hidden=(width,)) for width in (3, 32)}
    alone = rank(nets, dt.load_task("digits"), by=by, at="hidden1", samples=201)
    for ranking in found:
        assert [place.name for place in ranking] == [place.name for place in alone]
        for one, other in zip(ranking, alone, strict=True):
            # The features of other batches differ in the last bits of float32.
            assert one.score == pytest.approx(other.score, rel=1e-5)
            assert one.expected == pytest.approx(other.expected, abs=0.006)
            assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-3)
