"""Training in partitions: in processes as in one, against plain loops, and what goes wrong."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
import torch
from forked import PATIENCE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from train.partition_worker import (
    CASES,
    EPOCHS,
    THREE,
    TWO,
    conv,
    delayed,
    dense,
    every,
    facts,
    killed,
    meet,
    mistakes,
    replicas,
    task,
    trained,
)

import dovetail as dt
from dovetail.core.errors import CutError, SettingsError, TaskError
from dovetail.train.balance import balanced, loads


def ended(processes, folder, *, of=None):
    """What each process wrote."""
    for process in processes:
        process.join(PATIENCE)
        assert process.exitcode is not None
    ranks = range(len(processes)) if of is None else of
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in ranks]


@pytest.fixture(scope="module")
def met(tmp_path_factory):
    """What two processes ended with, and three."""
    two, three = (tmp_path_factory.mktemp(name) for name in ("two", "three"))
    both = [(meet(every, 2, two, list(TWO)), two), (meet(every, 3, three, list(THREE)), three)]
    return [found for processes, folder in both for found in ended(processes, folder)]


# The same bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_processes_of_their_own_give_the_bytes_of_one(met, name):
    alone = trained(name)
    found = [each[name] for each in met if name in each]
    assert len(found) == (3 if name in THREE else 2)
    for other in found:
        assert other == alone


def test_process_0_chooses_the_cuts_for_all(met):
    first, second = (each["balanced"] for each in met[:2])
    assert first == second
    alone = dt.train.partitioned(
        conv(), task(), epochs=1, batch_size=16, seed=5, at=first.pop("at")
    )
    assert first == facts(alone)


def test_each_step_is_on_what_the_weights_before_gave():
    """Two plain loops over the same batches, written out."""
    from dovetail.measure.forward import prepare
    from dovetail.train.decision import Decision
    from dovetail.train.supervision import Batches

    ours = dt.train.partitioned(
        *(dense(), task()),
        **{"at": "hidden1", "epochs": 2, "batch_size": 16, "schedule": "constant", "lr": 0.05},
    )
    data, front = task(), dense()
    front = front.changed(contract=ours.part.contract)
    lower, upper = (part.module for part in dt.cut(front, at="hidden1"))
    with torch.random.fork_rng():
        from dovetail.core.seeds import derived_seed

        seed = derived_seed(0, "stage", "partition1")
        block = Decision.for_shape((16,)).part((16,), 3, seed=seed).module
    optimisers = [
        torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True, weight_decay=decay)
        for parameters, lr, decay in (
            ([*lower.parameters(), *block.parameters()], 0.05, 5e-4),
            (list(upper.parameters()), 0.025, 2.5e-4),
        )
    ]
    rows = data.indices("train")
    batches = Batches(prepare(data.inputs[rows], front.contract), data.targets[rows], 16, seed=0)
    lower.train(), upper.train(), block.train()
    for epoch in range(2):
        for x, y in batches.epoch(epoch):
            z = lower(x)
            losses = [
                nn.functional.cross_entropy(block(z), y),
                nn.functional.cross_entropy(upper(z.detach().clone()), y),
            ]
            for optimiser, loss in zip(optimisers, losses, strict=True):
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    for name, tensor in front.module.state_dict().items():
        assert torch.equal(tensor, ours.part.module.state_dict()[name]), name


def test_no_gradient_crosses_a_cut():
    """What is above has no say: with another network there, what is below ends the same."""
    ends = []
    for lr_by_depth in (0.5, 0.1):
        fit = dt.train.partitioned(
            conv(), task(), at="3", epochs=2, batch_size=16, lr_by_depth=lr_by_depth
        )
        ends.append([part.digest for part in dt.cut(fit.part, at="3")])
    (low, high), (same, other) = ends
    assert low == same
    assert high != other


@pytest.mark.parametrize("name", ["by loss", "by features"])
def test_a_filter_hands_on_fewer_rows(name):
    found, n = trained(name), task().size("train")
    first, second, third = found["seen"]
    assert first == EPOCHS * n
    assert n < second < first
    assert n <= third <= second
    if name == "by loss":  # of batches of 16, four go
        rows = [row for row in found["rows"] if row["partition"] == 2]
        assert rows[0]["samples"] == n
        assert rows[1]["samples"] == pytest.approx(0.75 * n, abs=4)


def test_a_filter_by_inputs_chooses_before():
    fit = dt.train.partitioned(conv(), task(), at="3", epochs=2, filter="inputs:3,cap:0.5")
    assert fit.record.partitions[0].examples == 2 * fit.record.settings["filter_kept"]
    assert fit.record.settings["filter_kept"] < task().size("train")


@pytest.mark.parametrize("order", ["up", "round-robin"])
def test_one_after_the_other_is_layerwise_with_these_cuts(order):
    """The same stages, but for their names, which the seeds are made of."""
    fit = dt.train.partitioned(
        dense(), task(), at="hidden1", order=order, epochs=3, batch_size=16, lr=0.05
    )
    assert [len(each.rows) for each in fit.record.partitions] == [3, 3]
    assert fit.record.final["validation accuracy"] > 0.9
    assert fit.part.digest != dense().digest


def test_a_callback_stops_all_partitions():
    seen = []

    def stop(moment):
        seen.append((moment.stage, moment.epoch))
        return moment.stage == "partition1" and moment.epoch == 2

    fit = dt.train.partitioned(conv(), task(), at="3", epochs=5, callbacks=(stop,))
    assert seen == [(f"partition{k}", e) for e in (1, 2) for k in (1, 2)]
    assert [len(each.rows) for each in fit.record.partitions] == [2, 2]


def test_numbers_to_predict():
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    lines = dt.Task(x, 1000 * x.sum(1), kind="regression", name="lines")
    net = dt.build("mlp", shape=(5,), hidden=(16, 16), classes=1)
    fit = dt.train.partitioned(net, lines, epochs=20, lr=0.05)
    assert fit.record.final["validation r2"] > 0.8
    assert dt.evaluate(fit.part, lines).measures["r2"] > 0.8


def test_replicas_share_the_rows(tmp_path):
    found = ended(meet(replicas, 4, tmp_path), tmp_path)
    assert len({each["digest"] for each in found}) == 1
    assert found[0]["accuracy"] > 0.9
    assert all(seen < 20 * 130 * 0.6 for seen in found[0]["seen"])


# Interrupted --------------------------------------------------------------------------------------


def test_killed_in_one_process_and_resumed(tmp_path):
    class PowerCut(Exception):
        pass

    def cut(moment):
        if moment.epoch == 2 and moment.stage == "partition2":
            raise PowerCut

    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    with pytest.raises(PowerCut):
        trained("augmented", callbacks=(cut,), **kept)
    assert trained("augmented", **kept)["digest"] == trained("augmented")["digest"]


@pytest.mark.parametrize(("who", "how"), [(2, "SIGKILL"), (1, "SIGSTOP")])
def test_a_process_that_dies_or_stalls_ends_all_and_the_run_resumes(tmp_path, who, how):
    processes = meet(killed, 3, tmp_path, who, how)
    others = [rank for rank in range(3) if rank != who]
    for rank in others:
        processes[rank].join(60)
    if how == "SIGSTOP":
        processes[who].kill()
    for each in ended(processes, tmp_path, of=others):
        assert "partition" in each["said"], each
        assert "the same call goes on from the last checkpoint" in each["said"]
        assert "\n" not in each["said"]
        assert each["seconds"] < 30
    resumed = trained("three", checkpoint=tmp_path / "run.safetensors", checkpoint_seconds=0)
    alone = trained("three")
    assert resumed["digest"] == alone["digest"]
    assert resumed["rows"] == alone["rows"]
    assert resumed["seen"][0] < alone["seen"][0]


def test_the_last_epoch_that_all_have_kept_is_gone_back_to(tmp_path):
    """A partition that was killed before it had saved what the others did."""
    kept = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_seconds": 0}
    whole = trained("dense", **kept)
    last = tmp_path / "run.partition2.safetensors"
    last.with_name("run.partition2.before.safetensors").replace(last)
    again = trained("dense", **kept)
    assert again["digest"] == whole["digest"]
    assert 0 < again["seen"][0] < whole["seen"][0] / (EPOCHS - 1)


@pytest.mark.slow
def test_fifty_runs_with_random_delays_come_to_an_end(tmp_path):
    found = ended(meet(delayed, 3, tmp_path, 50), tmp_path)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 50


# Balance ------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(*[st.floats(0, 9)] * 4), min_size=1, max_size=8),
    st.integers(1, 4),
)
def test_the_cuts_are_the_best_there_are(layers, partitions):
    partitions = min(partitions, len(layers))
    costs, heads, sent, firsts = ([each[i] for each in layers] for i in range(4))
    cuts = balanced(costs, heads, partitions, sent, firsts)
    assert len(cuts) == partitions - 1
    every_one = combinations(range(1, len(layers)), partitions - 1)

    def slowest(cuts):
        last = [*(cut - 1 for cut in cuts), len(layers) - 1]
        return max(*loads(costs, heads, cuts, firsts), *(sent[i] for i in last))

    assert slowest(cuts) == pytest.approx(min(map(slowest, every_one)))


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error", "told"),
    [
        ({"parallel": True}, SettingsError, "torchrun"),
        ({"parallel": True, "order": "up"}, SettingsError, "at once"),
        ({"replicas": 2}, SettingsError, "parallel=True"),
        ({"partitions": 9}, CutError, "4 layers"),
        ({"at": ("3", "8"), "partitions": 2}, SettingsError, "3 partitions"),
        ({"at": "nowhere"}, CutError, "nowhere"),
        ({"patience": 2}, SettingsError, "patience"),
        ({"rounds": 2}, SettingsError, "rounds"),
        ({"order": "sideways"}, SettingsError, "order"),
        ({"packing": "zip"}, SettingsError, "packing"),
        ({"packing": {"bit": 3}}, SettingsError, "did you mean bits"),
        ({"packing": "float16", "order": "up"}, SettingsError, "packing"),
        ({"queue": 0}, SettingsError, "queue"),
        ({"filter": "loss"}, SettingsError, "filter"),
    ],
)
def test_what_contradicts_itself_is_refused(said, error, told):
    with pytest.raises(error, match=told):
        dt.train.partitioned(conv(), task(), epochs=1, **said)


def test_pairs_have_no_targets_for_partitions(of_pairs, net):
    with pytest.raises(TaskError, match="pair labels"):
        dt.train.partitioned(net, of_pairs)


def test_more_processes_or_fewer_than_it_takes(tmp_path):
    for said in ended(meet(mistakes, 2, tmp_path), tmp_path):
        assert len(said) == 3
        assert "2 processes for 3 partitions; start 3" in said[0]
        assert "of 2 replicas; start 4" in said[1]
        assert "parallel=True" in said[2]
