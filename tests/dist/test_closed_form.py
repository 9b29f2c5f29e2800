"""Two processes that each hold a share of the rows fit the network of one that holds all."""

from __future__ import annotations

import pytest
import torch
from forked import meet
from safetensors.torch import load_file

from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import HeldRows

PROCESS = """
import sys
import torch
from safetensors.torch import save_file
from dovetail.closed_form.platonic import platonic
from dovetail.closed_form.rows import Block, HeldRows, StreamedRows, moments_of
from dovetail.core.errors import SettingsError, TaskError

rank, folder = int(sys.argv[1]), sys.argv[2]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
)
data = torch.load(f"{folder}/data.pt", weights_only=True)
for name, case in data["cases"].items():
    cut = case.pop("cut")
    share = slice(None, cut) if rank == 0 else slice(cut, None)
    x, y = data["x"][share], data["y"][share]
    weights = data["weights"][share] if case.pop("weighted") else None
    if case.pop("streamed"):
        parts = [slice(start, start + 13) for start in range(0, max(1, len(x)), 13)]
        rows = StreamedRows(
            lambda: (Block(x[p], y[p], None if weights is None else weights[p]) for p in parts),
            shared=True,
        )
    else:
        rows = HeldRows(x, y, weights, shared=True)
    net = platonic(rows, (6, 5, 4), activation=torch.tanh, **case)
    kept = {}
    for i, layer in enumerate((*net.layers, net.head)):
        kept |= {f"{i} weights": layer.weights.contiguous(), f"{i} bias": layer.bias.contiguous()}
    kept["distances"] = torch.tensor([fit.distance for fit in net.fits], dtype=torch.float64)
    save_file(kept, f"{folder}/{name}{rank}")

said = []
x, y = data["x"], data["y"]
nothing = StreamedRows(lambda: iter([Block(x, y)][rank:]), shared=True)
spoilt = HeldRows(x / (1 - rank), y, shared=True)
third = HeldRows(x, y, shared=True)
for rows, settings in ((nothing, {}), (spoilt, {}), (third, {"solver": "pinv"})):
    try:
        platonic(rows, (3,), **settings)
    except (TaskError, SettingsError) as error:
        said.append(str(error))
torch.save(said, f"{folder}/said{rank}.pt")
torch.distributed.destroy_process_group()
"""

CASES = {
    f"{name}-{'streamed' if streamed else 'held'}": {
        "projections": projections,
        "ema": ema,
        "weighted": weighted,
        "cut": cut,
        "streamed": streamed,
        "solver": "cholesky",
        "ridge": 0.1,
        "tries": 3,
    }
    for name, projections, ema, weighted, cut in (
        ("random", ("random",), None, False, 70),
        ("sorted", ("sorted-pca", "pca"), 0.2, False, 70),
        ("weighted", ("sorted-pca", "random", "pca"), 0.5, True, 23),
        ("alone", ("sorted-pca", "random"), None, False, 0),
    )
    for streamed in (False, True)
}


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("meeting")
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(150, 4, generator=draw, dtype=torch.float64)
    weights = torch.rand(150, generator=draw, dtype=torch.float64) + 0.5
    data = {"x": x, "y": x[:, :2].sin() + x[:, 2:3], "weights": weights, "cases": CASES}
    torch.save(data, folder / "data.pt")
    meet(PROCESS, folder)
    return folder, data


@pytest.mark.parametrize("name", CASES)
def test_two_processes_fit_the_network_of_one(meeting, name):
    folder, data = meeting
    mine, other = (load_file(folder / f"{name}{rank}") for rank in range(2))
    assert all(torch.equal(mine[key], other[key]) for key in mine)
    case = CASES[name]
    settings = {key: case[key] for key in ("projections", "ema", "solver", "ridge", "tries")}
    weights = data["weights"] if case["weighted"] else None
    whole = platonic(
        HeldRows(data["x"], data["y"], weights), (6, 5, 4), activation=torch.tanh, **settings
    )
    for i, layer in enumerate((*whole.layers, whole.head)):
        for part in ("weights", "bias"):
            wanted = getattr(layer, part)
            far = float((mine[f"{i} {part}"] - wanted).abs().max())
            assert far <= 1e-10 * max(1.0, float(wanted.abs().max()))
    distances = [fit.distance for fit in whole.fits]
    assert mine["distances"].tolist() == pytest.approx(distances, rel=1e-9)


def test_all_processes_are_told_what_is_wrong_with_one(meeting):
    folder, _ = meeting
    mine, other = (torch.load(folder / f"said{rank}.pt", weights_only=True) for rank in range(2))
    assert mine == other
    assert [("no batches" in mine[0]), ("not finite" in mine[1]), ("'eigen'" in mine[2])] == [
        True
    ] * 3
