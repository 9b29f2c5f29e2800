"""Averaged weights: against a slow reference, and two processes against a simulation of them."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dist.averaging_worker import EVERY, STEPS, TRAINING, WAYS, network, part, worker
from hypothesis import given, settings
from hypothesis import strategies as st
from references.averaging import slow_average
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.seeds import derived_seed
from dovetail.dist import Averaging, averaged
from dovetail.dist.packed_mean import mean_of, onward, packed
from dovetail.jobs.train import train
from dovetail.measure.forward import prepare
from dovetail.train.supervision import Batches


def states(workers, shape=(20, 20), seed=0):
    torch.manual_seed(seed)
    return [{"w": torch.randn(shape)} for _ in range(workers)]


# The pure function --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(2, 60), st.booleans(), st.integers(0, 99))
def test_equals_the_slow_reference_over_several_rounds(workers, levels, differences, seed):
    residuals, slow = None, [[0.0] * 400 for _ in range(workers)]
    since, common = [0.0] * 400, {"w": torch.zeros(20, 20).double()}
    for turn in range(3):
        given_states = [
            {"w": state["w"].double()} for state in states(workers, seed=seed + 1000 * turn)
        ]
        flat = [state["w"].flatten().tolist() for state in given_states]
        mean, slow = slow_average(flat, slow, since, levels)
        found = averaged(
            given_states, residuals, {"levels": levels}, common if differences else None
        )
        residuals = found.residuals
        if differences:
            since, common = mean, found.state
        assert found.state["w"].flatten().tolist() == pytest.approx(mean, abs=1e-12)
        for one, other in zip(residuals, slow, strict=True):
            assert one["w"].flatten().tolist() == pytest.approx(other, abs=1e-12)


def test_plain_is_the_mean():
    given_states = states(3)
    found = averaged(given_states)
    expected = torch.stack([s["w"].double() for s in given_states]).mean(0).float()
    assert torch.equal(found.state["w"], expected)
    assert found.residuals == ({}, {}, {})
    assert all(bits > 32 * 400 for bits in found.bits)


def test_packed_is_smaller_and_near():
    given_states = states(2, (200, 200))
    plain, small = averaged(given_states), averaged(given_states, None, {"extra_bits": 3})
    assert max(small.bits) < min(plain.bits) / 4
    assert torch.allclose(plain.state["w"], small.state["w"], atol=0.1)
    assert not torch.equal(plain.state["w"], small.state["w"])


def test_what_is_given_stays_as_it_is():
    given_states = states(2)
    before = copy.deepcopy(given_states)
    first = averaged(given_states, None, {"bits": 2})
    kept = copy.deepcopy(first.residuals)
    averaged(given_states, first.residuals, {"bits": 2})
    assert all(torch.equal(a["w"], b["w"]) for a, b in zip(given_states, before, strict=True))
    assert all(torch.equal(a["w"], b["w"]) for a, b in zip(first.residuals, kept, strict=True))


def test_error_feedback_keeps_what_is_smaller_than_a_bin():
    """Steps of a tenth of a bin: with feedback they add up, without it they are lost for ever."""
    start = torch.linspace(-1, 1, 400).reshape(20, 20)
    step = torch.zeros(20, 20)
    step[10, 10] = 0.2 / 2**4
    ends = {}
    for feedback in (True, False):
        w, residuals = start, None
        for _ in range(100):
            found = averaged([{"w": w + step}], residuals, {"bits": 4})
            residuals = found.residuals if feedback else None
            w = found.state["w"]
        ends[feedback] = float((w - start)[10, 10])
    assert ends[True] == pytest.approx(100 * 0.2 / 2**4, abs=0.2)
    assert abs(ends[False]) < 0.2


def test_differences_need_fewer_bits_than_weights():
    """Two bits of a small step are nearly all of it; two bits of the weights are not."""
    common = states(1, (100, 100))[0]
    moved = [{"w": common["w"] + 0.01 * state["w"]} for state in states(2, (100, 100), seed=1)]
    exact = averaged(moved).state["w"]
    errors, sent = {}, {}
    for since in (None, common):
        found = averaged(moved, None, {"bits": 2}, since)
        errors[since is None] = float((found.state["w"] - exact).norm())
        sent[since is None] = sum(found.bits)
    assert errors[False] < 0.02 * errors[True]
    assert sent[False] < 1.3 * sent[True]


def test_what_is_not_rounded_is_not_a_difference():
    """A difference to something large would lose digits that are promised."""
    common = {"w": torch.full((20, 20), 1e6), "b": torch.full((9,), 1e6)}
    state = {"w": common["w"] + torch.rand(20, 20), "b": torch.rand(9) * 1e-3}
    for packing in (None, {}):
        found = averaged([state], None, packing, common)
        assert torch.equal(found.state["b"], state["b"])
    kept = averaged([state], None, {"lossless": ("w",)}, common)
    assert torch.equal(kept.state["w"], state["w"])


def test_integers_are_those_of_the_first_and_halves_are_averaged():
    given_states = [
        {
            "n": torch.tensor(3 + i),
            "on": torch.tensor([i == 0]),
            "half": torch.full((30, 30), float(i), dtype=torch.bfloat16),
            "z": torch.tensor([1j * i]),
            "none": torch.empty(0),
        }
        for i in range(2)
    ]
    for packing in (None, {}):
        found = averaged(given_states, None, packing).state
        assert found["n"] == 3
        assert found["on"].tolist() == [True]
        assert torch.equal(found["half"], torch.full((30, 30), 0.5, dtype=torch.bfloat16))
        assert found["z"].tolist() == [0.5j]
        assert found["none"].shape == (0,)
        assert {k: v.dtype for k, v in found.items()} == {
            k: v.dtype for k, v in given_states[0].items()
        }


def test_residuals_of_halves_are_not_rounded_to_halves():
    torch.manual_seed(0)
    message = packed({"w": torch.randn(30, 30).half()}, {}, {"bits": 3})
    assert message.lost["w"].dtype == torch.float32
    assert 0 < message.error < 0.5


@pytest.mark.parametrize(
    "other", [{"v": torch.zeros(3, 3)}, {"w": torch.zeros(3, 4)}, {}], ids=["name", "shape", "no"]
)
def test_states_that_differ_are_refused(other):
    with pytest.raises(ContractError, match="process 1"):
        mean_of([{"w": torch.zeros(3, 3)}, other])


def test_weights_that_are_not_finite_are_refused_by_name():
    with pytest.raises(TaskError, match="'w'"):
        averaged([{"w": torch.full((20, 20), torch.nan)}], None, {})


# One process alone --------------------------------------------------------------------------------


def test_alone_nothing_happens():
    net = nn.Linear(30, 30)
    before = copy.deepcopy(net.state_dict())
    averaging = Averaging(net, every=1, packing={"bits": 1})
    assert not averaging.step()
    assert not averaging.synchronise()
    assert same(before, net.state_dict())
    record = averaging.record()
    assert record.processes == 1
    assert record.rows == ()
    assert record.view()


@pytest.mark.parametrize("every", [0, -1, 2.5, "3"])
def test_an_interval_is_a_whole_number(every):
    with pytest.raises(SettingsError, match="every"):
        Averaging(nn.Linear(2, 2), every=every)


@pytest.mark.parametrize(
    ("packing", "told"),
    [
        ({"lossless": "head.*"}, "list of patterns"),
        ({"extra_bit": 5}, "did you mean extra_bits"),
        ({"seen": set()}, "is none"),
        ({"bits": 99}, "bits must be"),
        ({"gradients": False}, "gradients"),
        ("extra_bits", "by name"),
    ],
)
def test_a_packing_that_is_none_is_refused_at_once(packing, told):
    with pytest.raises(SettingsError, match=told):
        Averaging(nn.Linear(2, 2), packing=packing)


def test_gradients_and_no_packing_are_taken():
    for packing in ({"gradients": True, "extra_bits": 3}, None, {"lossless": ("head.*",)}):
        assert Averaging(nn.Linear(2, 2), packing=packing).step() is False


def test_a_residual_of_another_network_is_refused():
    averaging = Averaging(nn.Linear(2, 2))
    for kind in ("residuals", "common"):
        state = averaging.state_dict() | {kind: {"weight": torch.zeros(3, 3)}}
        with pytest.raises(ContractError, match=f"weight.*{kind}"):
            averaging.load_state_dict(state)


def test_training_alone_is_as_without():
    task = dt.load_task("digits")
    alone = dt.train.end_to_end(part(), task, epochs=1, seed=5)
    same = dt.train.end_to_end(part(), task, epochs=1, seed=5, average_every=3)
    assert alone.part.digest == same.part.digest
    assert same.record.settings["processes"] == 1


# Two processes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def meeting(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("meeting")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*run, str(Path(__file__).with_name("averaging_worker.py")), str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (folder / "said").write_text(done.stdout)
    return folder


def both(folder, name):
    return [torch.load(folder / f"{name}{rank}.pt", weights_only=True) for rank in range(2)]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def sent(net):
    """What a worker sends: trained weights once each, and buffers."""
    frozen = {"3.weight", "3.bias"}
    tied = {"5.weight"}
    return {k: v for k, v in net.state_dict().items() if k not in frozen | tied}


@pytest.mark.parametrize("name", WAYS)
def test_two_processes_equal_their_simulation(meeting, name):
    packing, feedback = WAYS[name]
    nets = [network() for _ in range(2)]
    steps = [worker(net, rank) for rank, net in enumerate(nets)]
    residuals, since = [{}, {}], copy.deepcopy(sent(nets[0]))
    for number in range(1, STEPS + 1):
        for step in steps:
            step()
        if number % EVERY == 0 or number == STEPS:
            messages = [
                packed(sent(net), e, chosen(packing, net), since)
                for net, e in zip(nets, residuals, strict=True)
            ]
            moved = messages[0].moved
            assert moved == ({"0.weight", "4.weight"} if packing else set())
            mean = onward(mean_of(message.values for message in messages), moved, since)
            since = copy.deepcopy(mean)
            residuals = [message.lost if feedback else {} for message in messages]
            for net in nets:
                net.load_state_dict(mean | {"5.weight": mean["4.weight"]}, strict=False)
    found = both(meeting, name)
    assert same(*found)
    assert same(found[0], nets[0].state_dict())
    untouched = network().state_dict()
    assert torch.equal(found[0]["3.weight"], untouched["3.weight"])
    record = dt.load_record(meeting / f"{name}0.json")
    assert [row["step"] for row in record.rows] == [3, 6, 8]
    assert (record.ratio > 2) == (name != "plain")
    assert (record.rows[-1]["relative error"] > 0) == (name != "plain")


def chosen(packing, net):
    """Buffers exactly; the bits by the gradients that the last step left, if asked."""
    if packing is None:
        return None
    exact = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    found = {**packing, "lossless": exact}
    if packing.get("gradients"):
        named = net.named_parameters()
        found["gradients"] = {n: p.grad for n, p in named if p.grad is not None}
    return found


def test_training_in_two_processes_equals_its_simulation(meeting):
    task = dt.load_task("digits")
    nets, streams, optimisers = [], [], []
    start = dt.train.end_to_end(part(), task, epochs=1).part  # for its preprocessing
    rows = task.indices("train")
    rows = rows[: len(rows) // 2 * 2]
    for rank in range(2):
        net = copy.deepcopy(part().module)
        share = rows[rank::2]
        seed = TRAINING["seed"] if rank == 0 else derived_seed(TRAINING["seed"], "process", rank)
        inputs = prepare(task.inputs[share], start.contract)
        streams.append(Batches(inputs, task.targets[share], 50, seed=seed))
        nets.append(net.train())
        optimisers.append(
            torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True)
        )
    residuals, count, common = None, 0, copy.deepcopy(nets[0].state_dict())
    for epoch in range(TRAINING["epochs"]):
        for batches in zip(*(stream.epoch(epoch) for stream in streams), strict=True):
            for net, optimiser, (x, y) in zip(nets, optimisers, batches, strict=True):
                optimiser.zero_grad()
                nn.functional.cross_entropy(net(x), y).backward()
                optimiser.step()
            count += 1
            last = count % len(streams[0]) == 0
            if count % TRAINING["average_every"] == 0 or last:
                found = averaged([net.state_dict() for net in nets], residuals, {}, common)
                residuals, common = found.residuals, found.state
                for net in nets:
                    net.load_state_dict(found.state)
    trained = both(meeting, "trained")
    assert same(*trained)
    assert same(trained[0], nets[0].state_dict())


def test_a_resumed_training_ends_with_the_same_bytes(meeting):
    trained, resumed = both(meeting, "trained"), both(meeting, "resumed")
    assert same(*resumed)
    assert same(trained[0], resumed[0])
    assert {file.name for file in meeting.glob("run*")} == {
        "run.safetensors",
        "run.process1.safetensors",
        "run.before.safetensors",
        "run.process1.before.safetensors",
    }


@pytest.mark.parametrize("process", [0, 1])
def test_uneven_steps_end_in_one_clear_line_everywhere(meeting, process):
    told = (meeting / f"uneven{process}").read_text()
    assert told.startswith("the processes took different numbers of steps")
    assert "process 0: 6, process 1: 3" in told
    assert "\n" not in told


def test_a_process_that_has_ended_is_told_in_words():
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*run, str(Path(__file__).with_name("averaging_worker.py")), "--one-ends"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "told: after 2 steps the other processes cannot be reached" in done.stdout


def test_bits_and_accuracy_are_recorded_every_epoch(meeting):
    records = [dt.load_record(meeting / f"trained{rank}.json") for rank in range(2)]
    for row, other in zip(*(record.rows for record in records), strict=True):
        assert 1 < row["bits a weight"] < 32
        for name in ("loss", "bits a weight", "validation accuracy"):
            assert row[name] == other[name]
    assert records[0].settings["processes"] == 2
    assert "Sent to the other processes" in str(records[0].view())


def test_the_command_line_under_torchrun(meeting):
    assert (meeting / "said").read_text().count('"ref": "m@1"') == 1
    shelf = dt.Shelf(meeting / "shelf")
    kept = shelf.get("m@1")
    assert kept.origin.settings["processes"] == 2
    assert kept.origin.settings["packing"] == "extra_bits=3"
    assert {entry.name for entry in shelf} == {"m", "m.epoch01", "m.epoch02"}
    assert not list(meeting.glob(".dovetail-runs/*"))


def test_bits_without_an_interval_are_refused():
    with pytest.raises(SettingsError, match=r"average.every"):
        train("digits", extra_bits=3)
    with pytest.raises(SettingsError, match=r"end.to.end"):
        train("digits", how="modular", average_every=3)
