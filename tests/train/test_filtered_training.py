"""Filters in the trainers: what is seen, what the record says, interruptions, what is refused."""

import json
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from train.bare_loop import rate

from dovetail.core.errors import DovetailError, SettingsError, TaskError
from dovetail.core.seeds import derived_seed
from dovetail.measure.neighbours import k_filter
from dovetail.parts.part import build
from dovetail.tasks.task import Task
from dovetail.train import compatible, end_to_end, layerwise, modular, self_supervised
from dovetail.train.filtering import Filter
from dovetail.train.supervision import Batches

DURING = ("features:2,after:1,cap:0.5", "loss:0.4,after:1", "features:2,after:1,pool:20")


class PowerCut(Exception):
    """What stands for a power cut."""


class Loss:
    """Cross-entropy that fails at one of its calls in training."""

    __name__ = "cross_entropy"

    def __init__(self, fails_at=None):
        self.fails_at, self.calls = fails_at, 0

    def __call__(self, outputs, targets):
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls == self.fails_at:
                raise PowerCut
        return F.cross_entropy(outputs, targets)


def state(fit):
    return {name: value.clone() for name, value in fit.part.module.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def seen(fit):
    return [row["samples"] for row in fit.record.rows]


def test_before_training_the_k_filter_of_the_lens_chooses(task, net):
    noise = torch.rand(task.inputs.shape, generator=torch.Generator().manual_seed(0))
    task = task.derived("noisy", inputs=task.inputs + noise)
    rows = task.indices("train")
    inputs, labels = task.inputs[rows].flatten(1), task.targets[rows]
    keep = k_filter(inputs, labels, 1)
    assert 16 <= int(keep.sum()) < len(rows)
    fewer = task.derived("blobs", indices={**task._indices, "train": rows[keep]})
    # The preprocessing is that of the whole task.
    whole = end_to_end(net, task, epochs=1).part.contract.preprocess
    by_hand = end_to_end(net, fewer, epochs=3, batch_size=16, preprocess=whole)
    fit = end_to_end(net, task, epochs=3, batch_size=16, filter="inputs:1")
    assert same(state(fit), state(by_hand))
    assert seen(fit) == [int(keep.sum())] * 3
    assert fit.record.settings["filter_of"] == len(rows)


@pytest.mark.parametrize("words", DURING)
def test_each_epoch_learns_from_what_the_network_then_leaves(task, net, words):
    """The same by a bare loop: the order of all rows, the mask, steps at the share done."""
    chosen, size, epochs = Filter.parse(words), 8, 3
    fit = end_to_end(net, task, epochs=epochs, batch_size=size, lr=0.05, filter=words)
    module = build("mlp", shape=(1, 4, 4), hidden=(16,), classes=3, seed=1).module
    rows = task.indices("train")
    made = fit.part.contract.preprocess
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in (made.mean, made.std))
    x, y = (task.inputs[rows] - mean) / std, task.targets[rows]
    optimiser = torch.optim.SGD(
        module.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    whole, counts = Batches(x, y, size), []
    for epoch in range(epochs):
        order, keep = whole.order(epoch), torch.ones(len(x), dtype=torch.bool)
        if epoch >= 1:
            module.eval()
            pools = order.tensor_split(-(-len(x) // chosen.pool))
            for pool in pools:
                with torch.no_grad():
                    losses = F.cross_entropy(module(x[pool]), y[pool], reduction="none")
                    features = x[pool]
                    for layer in list(module.children())[:-1]:
                        features = layer(features)
                keep[pool] = chosen.keep(features, y[pool], losses, least=-(-size // len(pools)))
        order = order[keep[order]]
        counts.append(len(order))
        batches = [rows for rows in order.split(size) if len(rows) > 1]
        torch.manual_seed(derived_seed(0, "epoch", epoch))
        module.train()
        for i, places in enumerate(batches):
            step = epoch * len(whole) + int(i * len(whole) / len(batches))
            optimiser.param_groups[0]["lr"] = 0.05 * rate("one-cycle", step, epochs * len(whole))
            optimiser.zero_grad()
            F.cross_entropy(module(x[places]), y[places]).backward()
            optimiser.step()
    assert seen(fit) == counts
    assert counts[0] == len(x) > counts[1]
    for name, value in module.state_dict().items():
        assert torch.allclose(value, fit.part.module.state_dict()[name], atol=1e-5)


@pytest.mark.parametrize("words", DURING)
@pytest.mark.parametrize("fails_at", [2, 9, 11, 14])
def test_a_run_that_was_killed_goes_on_with_the_rows_it_had_chosen(
    task, net, tmp_path, words, fails_at
):
    options = {"epochs": 4, "batch_size": 8, "checkpoint_seconds": 0, "filter": words}
    file = tmp_path / "run.safetensors"
    whole = end_to_end(net, task, loss=Loss(), **options)
    with pytest.raises(PowerCut):
        end_to_end(net, task, loss=Loss(fails_at), checkpoint=file, **options)
    fit = end_to_end(net, task, loss=Loss(), checkpoint=file, **options)
    assert same(state(fit), state(whole))
    assert seen(fit) == seen(whole)


@pytest.mark.parametrize("order", ["up", "round-robin"])
@pytest.mark.parametrize("fails_at", [12, 30])
def test_a_training_in_stages_that_was_killed_goes_on_likewise(task, tmp_path, order, fails_at):
    net = build("mlp", shape=(1, 4, 4), hidden=(12, 8), classes=3, seed=1)
    options = {"epochs": 3, "batch_size": 8, "checkpoint_seconds": 0, "order": order}
    options |= {"filter": DURING[1]}
    file = tmp_path / "run.safetensors"
    whole = layerwise(net, task, loss=Loss(), **options)
    with pytest.raises(PowerCut):
        layerwise(net, task, loss=Loss(fails_at), checkpoint=file, **options)
    fit = layerwise(net, task, loss=Loss(), checkpoint=file, **options)
    assert same(state(fit), state(whole))
    assert seen(fit) == seen(whole)


@pytest.mark.parametrize("words", DURING)
def test_rows_are_chosen_on_images_as_they_are(task, net, words):
    """A filter that drops nothing leaves a training with augmentation as it is."""
    options = {"epochs": 3, "batch_size": 8, "augment": "shift:1"}
    idle = words.replace("features:2", "features:59").replace("loss:0.4", "loss:0.001")
    plain, filtered = (end_to_end(net, task, **options, filter=f) for f in (None, idle))
    assert same(state(plain), state(filtered))
    one, other = (end_to_end(net, task, **options, filter=words) for _ in range(2))
    assert same(state(one), state(other))
    assert seen(one)[1] < len(task.indices("train"))


def test_a_row_that_was_dropped_comes_back(task, net):
    """By loss, the rows with the lowest are dropped: they are not the same in every epoch."""
    masks = []

    class Watched(Filter):
        def keep(self, features, labels, losses=None, *, least=1):
            masks.append(super().keep(features, labels, losses, least=least))
            return masks[-1]

    batches = []
    fit = end_to_end(net, task, epochs=5, batch_size=8, filter=Watched("loss", 0.5, after=1))
    batches = [
        Batches(task.inputs, task.targets, 8, rows=task.indices("train")).order(e)
        for e in range(1, 5)
    ]
    dropped = [set(order[~mask].tolist()) for order, mask in zip(batches, masks, strict=True)]
    assert any(one - other for one, other in pairwise(dropped))
    assert seen(fit)[1:] == [int(mask.sum()) for mask in masks]


@pytest.mark.parametrize("words", DURING)
def test_layer_by_layer_each_stage_chooses_from_what_enters_it(task, words, tmp_path):
    net = build("mlp", shape=(1, 4, 4), hidden=(12, 8), classes=3, seed=1)
    for order in ("up", "round-robin"):
        options = {"epochs": 3, "batch_size": 8, "order": order, "filter": words}
        fit = layerwise(net, task, **options)
        again = layerwise(net, task, **options, checkpoint=tmp_path / f"{order}.safetensors")
        assert same(state(fit), state(again))
        for stage in fit.record.stages:
            assert stage.rows[0]["samples"] == task.size("train")
            assert stage.rows[1]["samples"] < task.size("train")
            assert stage.samples == sum(row["samples"] for row in stage.rows)
    assert "samples" in json.dumps([getattr(b, "columns", ()) for b in fit.record.view()])


@pytest.mark.parametrize("words", ["inputs:6", "features:2", "loss:0.4"])
def test_in_modules_the_output_module_chooses_and_inputs_are_for_all(task, net, words):
    fit = modular(net, task, epochs=2, batch_size=8, filter=words)
    body, head = fit.record.modules
    assert ("samples" in body.rows[0]) == words.startswith("inputs")
    assert head.rows[-1]["samples"] < task.size("train")
    assert any("The filter left" in getattr(block, "text", "") for block in fit.record.view())


def test_networks_that_are_to_fit_learn_from_filtered_inputs(task, net):
    options = {"by": ("dcc", "iiw"), "epochs": 2, "batch_size": 8, "at": "hidden1"}
    for scheme, count in (("joint", 2), ("incremental", 1)):
        fit = compatible([net, net], [task, task], scheme=scheme, filter="inputs:6", **options)
        samples = fit.record.stages[0].rows[0]["samples"]
        assert 2 * samples == count * fit.record.settings["filter_kept"]
        assert samples < count * task.size("train")
    with pytest.raises(SettingsError, match="epochs of one length"):
        compatible([net, net], [task, task], filter="loss:0.3", **options)


def test_the_record_tells_what_was_seen_and_what_it_cost(task, net):
    for words in ("inputs:6", *DURING):
        fit = end_to_end(net, task, epochs=3, batch_size=8, filter=words)
        spent = [row["filter seconds"] for row in fit.record.rows]
        assert (spent[0] > 0) == words.startswith("inputs")
        assert (spent[1] > 0) != words.startswith("inputs")
        assert fit.record.samples == sum(seen(fit))
        said = [block.text for block in fit.record.view() if hasattr(block, "text")]
        assert any(f"left {sum(seen(fit))} of {3 * task.size('train')} samples" in s for s in said)
    plain = end_to_end(net, task, epochs=1)
    assert plain.record.samples is None
    assert not any("filter" in getattr(block, "text", "") for block in plain.record.view())


def test_numbers_are_filtered_by_loss_alone():
    x = torch.rand(60, 3)
    numbers = Task(x, x.sum(1), kind="regression")
    net = build("mlp", shape=(3,), hidden=(8,), classes=1)
    fit = end_to_end(net, numbers, epochs=3, batch_size=8, filter="loss:0.5,after:1")
    assert seen(fit)[1] == numbers.size("train") - numbers.size("train") // 2
    for words in ("features:3", "inputs:3"):
        with pytest.raises(TaskError, match="k-filtering is about classes"):
            end_to_end(net, numbers, filter=words)


def test_at_least_a_batch_remains(net, task):
    apart = task.derived("apart", inputs=task.inputs + 10 * task.targets[:, None, None, None])
    for words in ("inputs:1", "features:1,cap:1,after:0"):
        fit = end_to_end(net, apart, epochs=2, batch_size=24, filter=words)
        assert all(24 <= rows < 24 + 3 for rows in seen(fit))  # a class may need one more


def test_without_labels_a_filter_is_refused(task, net, of_pairs):
    with pytest.raises(SettingsError, match="training without labels has neither"):
        self_supervised(net, task, filter="inputs:3")
    with pytest.raises(TaskError, match="k-filtering is about classes"):
        modular(net, of_pairs, filter="inputs:3")
    with pytest.raises(DovetailError, match="pair labels only"):
        modular(net, of_pairs, filter="loss:0.3")
    with pytest.raises(SettingsError, match="told of pairs only"):
        modular(net, task, supervision="pairs", filter="inputs:3")


def test_a_linear_network_is_filtered_by_its_inputs(task):
    linear = build("mlp", shape=(1, 4, 4), hidden=(), classes=3)
    fit = end_to_end(linear, task, epochs=2, batch_size=8, filter="features:3")
    assert seen(fit)[1] < seen(fit)[0]
