import copy
from dataclasses import replace

import pytest
import torch
from references import recombination as reference
from torch import nn

from dovetail.measure.forward import outputs_of, prepare
from dovetail.measure.joined import Fan, calibrating_batches, random_batches
from dovetail.measure.recombine import recombine
from dovetail.parts.joining import join
from dovetail.tasks.derive import only_classes

POLICIES = ("stored", "batch", "recalibrated")


def ordered(task, common, size, seed):
    """The task of the common classes with its test images in the order of the batches."""
    part = only_classes(task, common)
    batches = random_batches(part.indices("test"), seed, size)
    indices = {split: part.indices(split) for split in ("train", "validation")}
    return part.derived(part.name, indices=indices | {"test": torch.cat(batches)}), batches


@pytest.mark.parametrize("norms", POLICIES)
def test_each_pair_is_what_the_formula_says(fronts, heads, tasks, norms):
    size, count = 7, 50
    found = recombine(fronts, heads, tasks, norms=norms, batch_size=size, calibration=count, seed=5)
    for front_name, front in fronts.items():
        task = tasks[front_name]
        for head_name, head in heads.items():
            common = [name for name in task.classes if name in head.contract.classes]
            _, batches = ordered(task, common, size, 5)
            data = [
                (
                    prepare(task.inputs[rows], front.contract),
                    [task.classes[int(i)] for i in task.targets[rows]],
                )
                for rows in batches
            ]
            layers = [*reference.layers_of(front.module), *reference.layers_of(head.module)]
            with torch.no_grad():
                statistics = {
                    "stored": reference.stored,
                    "batch": reference.of_batch,
                    "recalibrated": reference.recalibrated(
                        layers, calibrating_batches(front, task, count, seed=5)
                    ),
                }[norms]
            masked, unmasked = reference.accuracies(
                front.module.eval(), head.module.eval(), data, head.contract.classes, statistics
            )
            assert found.accuracy[front_name][head_name] == pytest.approx(masked)
            assert found.unmasked[front_name][head_name] == pytest.approx(unmasked)
            assert found.common[front_name][head_name] == tuple(common)


def in_this_order(joined, task, batch_size):
    """Accuracy among the task's classes and among all the head's, on the images as they lie."""
    inputs, targets = task.subset("test")
    outputs = outputs_of(joined, inputs, batch_size=batch_size)
    columns = torch.tensor([joined.contract.classes.index(name) for name in task.classes])
    masked = outputs[:, columns].argmax(1) == targets
    unmasked = outputs.argmax(1) == columns[targets]
    return float(masked.double().mean()), float(unmasked.double().mean())


@pytest.mark.parametrize("norms", POLICIES)
def test_a_pair_is_the_evaluation_of_the_forced_join(fronts, heads, tasks, norms):
    size = 8  # 32 images of four classes, 24 of three: the same batches either way
    found = recombine(fronts, heads, tasks, norms=norms, batch_size=size, calibration=64)
    assert {name for name, row in found.fits.items() for head, yes in row.items() if yes} == {
        "abcd",
        "cdeb",
    }
    for pair in found.pairs:
        front, head, task = fronts[pair.front], heads[pair.head], tasks[pair.front]
        data = calibrating_batches(front, task, 64, seed=0) if norms == "recalibrated" else None
        joined = join(front, head, norms=norms, force=True, data=data)
        shuffled, batches = ordered(task, pair.classes, size, 0)
        assert {len(batch) for batch in batches} == {size}
        masked, unmasked = in_this_order(joined, shuffled, size)
        assert pair.accuracy == {norms: pytest.approx(masked)}
        assert pair.unmasked == {norms: pytest.approx(unmasked)}
        assert (pair.n, pair.head_classes) == (shuffled.size("test"), 4)
        assert pair.unmasked_chance == 1 / 4


@pytest.mark.parametrize("norms", POLICIES)
def test_the_fan_gives_the_bits_of_each_join(fronts, heads, norms):
    draw = torch.Generator().manual_seed(0)
    data = [torch.rand(n, 1, 8, 8, generator=draw) for n in (9, 6)]
    front = fronts["abcd"]
    fan = Fan(front.module, {name: head.module for name, head in heads.items()})
    calibrating = data if norms == "recalibrated" else ()
    found = fan.with_norms(norms, iter(calibrating)).eval()(data[0])
    for name, head in heads.items():
        joined = join(front, head, norms=norms, force=True, data=list(calibrating) or None)
        assert torch.equal(found[name], joined.module.eval()(data[0]))


def test_heads_that_share_a_batch_norm_are_calibrated_apart():
    norm = nn.BatchNorm1d(2)
    fan = Fan(nn.Flatten(), {"once": norm, "doubled": nn.Sequential(_Doubled(), norm)})
    x = torch.tensor([[1.0, 2.0], [3.0, 8.0]])
    twin = fan.with_norms("recalibrated", [x])
    assert twin.heads[0].running_mean.tolist() == [2.0, 5.0]
    assert twin.heads[1][1].running_mean.tolist() == [4.0, 10.0]
    assert norm.running_mean.tolist() == [0.0, 0.0]


class _Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def test_several_policies_are_what_each_alone_gives(fronts, heads, tasks):
    together = recombine(fronts, heads, tasks, norms=("batch", "stored"), correlation=False)
    assert together.norms == ("batch", "stored")
    for norms in ("batch", "stored"):
        alone = recombine(fronts, heads, tasks, norms=norms, correlation=False)
        assert together.accuracy_with(norms) == alone.accuracy
    assert together.accuracy == together.accuracy_with("batch")


def test_chance_own_heads_and_means(fronts, heads, tasks):
    found = recombine(fronts, heads, tasks, batch_size=24)
    assert found.own_heads == {"abcd": "abcd", "cdeb": "cdeb"}
    assert found.chance["abcd"] == {"abcd": 1 / 4, "cdeb": 1 / 3}
    assert found.common["cdeb"]["abcd"] == ("c", "d", "b")  # in the task's order
    assert [pair.n for pair in found.pairs] == [32, 24, 24, 32]
    off = [found.accuracy["abcd"]["cdeb"], found.accuracy["cdeb"]["abcd"]]
    assert found.mean_off_diagonal == pytest.approx(sum(off) / 2)
    own = [found.own["abcd"]["cdeb"], found.own["cdeb"]["abcd"]]
    assert found.upper_bound == pytest.approx(sum(own) / 2)
    for front, head in (("abcd", "cdeb"), ("cdeb", "abcd")):
        assert found.own[front][front] == found.accuracy[front][front]
        # The own head on the images of the common classes only, choosing among those.
        shuffled, _ = ordered(tasks[front], found.common[front][head], 24, 0)
        whole = join(fronts[front], heads[front], norms="batch")
        expected, _ = in_this_order(whole, shuffled, 24)
        assert found.own[front][head] == pytest.approx(expected)


def test_own_heads_by_place_by_name_or_not_at_all(fronts, heads, tasks):
    (a, b), (c, d) = fronts.values(), heads.values()
    task = tasks["abcd"]
    placed = recombine([a, b], [c, d], list(tasks.values()))
    names = ["abcd", "cdeb"]  # the tasks that they learnt
    assert list(placed.accuracy) == names
    assert placed.own_heads == {name: name for name in names}
    named = recombine(fronts, heads, tasks)
    assert [p.accuracy for p in placed.pairs] == [p.accuracy for p in named.pairs]
    lone = recombine(a, c, task, norms="batch")
    assert lone.own_heads == {}
    assert lone.mean_off_diagonal == placed.accuracy["abcd"]["abcd"]
    assert lone.upper_bound is None
    assert recombine([a, b], c, task).own_heads == {}
    assert recombine({"x": a}, {"y": c, "x": d}, task).own_heads == {"x": "x"}


def test_an_own_head_that_lacks_a_common_class_bounds_nothing(fronts, heads, tasks, renamed):
    head = renamed(heads["abcd"], ("a", "b", "c", "z"))
    found = recombine(
        {"abcd": fronts["abcd"]}, {"abcd": head, "other": heads["abcd"]}, tasks["abcd"]
    )
    assert found.common["abcd"]["abcd"] == ("a", "b", "c")
    assert found.own["abcd"]["abcd"] is not None
    assert found.own["abcd"]["other"] is None


def test_the_order_of_a_heads_outputs_is_by_name(fronts, heads, tasks):
    front, head, task = fronts["abcd"], heads["abcd"], tasks["abcd"]
    order = [2, 0, 3, 1]
    module = copy.deepcopy(head.module)
    last = module[-1]
    with torch.no_grad():
        last.weight[:], last.bias[:] = last.weight[order].clone(), last.bias[order].clone()
    names = tuple(head.contract.classes[i] for i in order)
    turned = head.changed(module=module, contract=replace(head.contract, classes=names))
    found = recombine(front, {"straight": head, "turned": turned}, task)
    (row,) = found.accuracy.values()
    assert row["straight"] == row["turned"] > 0.6


def test_every_batch_goes_through_the_front_once(fronts, heads, tasks):
    front, calls = copy.deepcopy(fronts["abcd"].module), []
    front.register_forward_hook(lambda module, inputs, output: calls.append(len(inputs[0])))
    many = {f"head {i}": heads["abcd"] for i in range(5)}
    part = fronts["abcd"].changed(module=front)
    recombine(part, many, tasks["abcd"], norms="stored", batch_size=16)
    assert calls == [2, 16, 16]  # the probe, then the 32 test images


def test_nothing_that_was_given_changes(fronts, heads, tasks):
    parts = [*fronts.values(), *heads.values()]
    before = [part.digest for part in parts]
    parts[0].module.train()
    recombine(fronts, heads, tasks, norms=POLICIES)
    assert [part.digest for part in parts] == before
    assert parts[0].module.training
    assert not any(hasattr(part.module, "heads") for part in parts)


def test_one_seed_one_answer(fronts, heads, tasks):
    def run(seed, norms="batch"):
        return recombine(fronts, heads, tasks, norms=norms, batch_size=8, calibration=24, seed=seed)

    assert run(3) == run(3)
    policies = {seed: run(seed, "recalibrated").pairs for seed in (1, 2)}
    assert run(1).settings["seed"] == 1
    assert [p.accuracy for p in policies[1]] != [p.accuracy for p in policies[2]]
    assert [p.accuracy for p in run(1, "stored").pairs] == [
        p.accuracy for p in run(2, "stored").pairs
    ]
