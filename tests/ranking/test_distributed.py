"""Two processes rank like one."""

from __future__ import annotations

import pytest
from forked import meet

import dovetail as dt
from dovetail.ranking.ranker import rank

PROCESS = """
import sys
import torch.distributed as dist
import dovetail as dt
from dovetail.ranking.ranker import rank

process, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=process, world_size=2)
digits = dt.load_task("digits")
nets = {f"{width} wide": dt.build("mlp", hidden=(width,)) for width in (3, 32)}
for by in ("logme", "ridge-loo"):
    ranking = rank(nets, digits, by=by, at="hidden1", samples=201)
    ranking.save(f"{folder}/{by}-{process}.json")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("meeting")
    meet(PROCESS, folder)
    return folder


@pytest.mark.parametrize("by", ["logme", "ridge-loo"])
def test_two_processes_rank_like_one(meeting, by):
    found = [dt.load_record(meeting / f"{by}-{i}.json") for i in (0, 1)]
    nets = {f"{width} wide": dt.build("mlp", hidden=(width,)) for width in (3, 32)}
    alone = rank(nets, dt.load_task("digits"), by=by, at="hidden1", samples=201)
    for ranking in found:
        assert [place.name for place in ranking] == [place.name for place in alone]
        for one, other in zip(ranking, alone, strict=True):
            # The features of other batches differ in the last bits of float32.
            assert one.score == pytest.approx(other.score, rel=1e-5)
            assert one.expected == pytest.approx(other.expected, abs=0.006)
            assert (one.low, one.high) == pytest.approx((other.low, other.high), rel=1e-3)
