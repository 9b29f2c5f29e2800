"""Processes that each saw a share of the rows agree with one that saw all."""

from __future__ import annotations

import pytest
import torch
from forked import meet
from safetensors.torch import load_file

from dovetail.dist import is_distributed, merge_across, rank_and_size
from dovetail.ranking.pair_sums import PairSums
from dovetail.ranking.scores_from_sums import KINDS
from dovetail.ranking.statistics import PairStatistics

PROCESS = """
import sys
import torch
from safetensors.torch import save_file
from dovetail.dist import is_distributed, merge_across, rank_and_size
from dovetail.ranking.pair_sums import PairSums
from dovetail.ranking.statistics import PairStatistics

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
)
assert is_distributed() and rank_and_size() == (rank, 2)
data = torch.load(f"{folder}/data.pt", weights_only=True)
for name, cut in (("many", 900), ("few", 4), ("none", 0), ("all", None)):
    share = slice(None, cut) if rank == 0 else slice(1000 if cut is None else cut, None)
    sums = PairStatistics("tanh").update(data["rows"][share], data["labels"][share])
    merged = merge_across(sums)
    assert sums.n == len(data["rows"][share])
    save_file(merged.state(), f"{folder}/{name}{rank}")
pairs = PairSums("tanh")
half = slice(0, 20) if rank == 0 else slice(20, 50)
pairs.update(data["rows"], *(data[key][half] for key in ("first", "second", "same")))
save_file(merge_across(pairs).state(), f"{folder}/pairs{rank}")
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("meeting")
    torch.manual_seed(7)
    first = torch.arange(50)
    data = {
        "rows": torch.randn(1000, 6),
        "labels": torch.randint(5, (1000,)) * 3,
        "first": first,
        "second": first + 60,
        "same": first % 3 == 0,
    }
    torch.save(data, folder / "data.pt")
    meet(PROCESS, folder)
    return folder, data


@pytest.mark.parametrize("name", ["many", "few", "none", "all"])
def test_two_processes_equal_one(meeting, name):
    folder, data = meeting
    states = [load_file(folder / f"{name}{rank}") for rank in range(2)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    merged = PairStatistics.from_state(states[0])
    whole = PairStatistics("tanh").update(data["rows"], data["labels"])
    assert merged.n == 1000
    assert merged.classes == whole.classes
    assert merged.scores(KINDS) == pytest.approx(whole.scores(KINDS), rel=1e-12, abs=1e-15)


def test_labelled_pairs_in_two_processes(meeting):
    folder, data = meeting
    merged = PairSums.from_state(load_file(folder / "pairs1"))
    whole = PairSums("tanh")
    for half in (slice(0, 20), slice(20, 50)):
        whole.update(data["rows"], *(data[key][half] for key in ("first", "second", "same")))
    assert merged.n == 2000
    for kind in ("al", "cts", "nmse-neo"):
        assert merged.score(kind) == pytest.approx(whole.score(kind), rel=1e-12)


def test_without_a_group_nothing_is_sent():
    assert not is_distributed()
    assert rank_and_size() == (0, 1)
    sums = PairStatistics().update(torch.eye(3), [0, 1, 1])
    merged = merge_across(sums)
    assert merged is not sums
    assert merged.score("al") == sums.score("al")
