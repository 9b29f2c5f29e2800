"""What cannot be made compatible is refused before the first epoch, with the way out."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from train.compatible_setting import lenet, pair_of_tasks, shapes

from dovetail.core.errors import ContractError, SettingsError, TaskError, TrainingError
from dovetail.objectives.pretexts import Jigsaw
from dovetail.parts.part import build
from dovetail.tasks.task import Task
from dovetail.train.compatible import compatible
from dovetail.train.group import Alternating


@pytest.fixture(scope="module")
def tasks():
    return pair_of_tasks()


@pytest.fixture(scope="module")
def heads(tasks):
    return compatible(
        lenet(1), tasks[0], by=("dcc", "rp"), at="conv2", epochs=1, batch_size=32
    ).auxiliaries


def never(_moment):
    raise AssertionError("an epoch was run")


def refused(error, words, models, tasks, **options):
    with pytest.raises(error, match=words):
        compatible(models, tasks, **({"epochs": 1, "callbacks": (never,)} | options))


def strangers():
    return shapes("other", ("sun", "moon", "sky"))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"by": ("dcc", "rpp")}, SettingsError, "unknown way to compatibility 'rpp'.*rp"),
        ({"by": (None,)}, SettingsError, "unknown way to compatibility None"),
        (
            {"scheme": "serial"},
            SettingsError,
            "unknown scheme 'serial'; there is joint, incremental",
        ),
        ({"pretext": "rotate"}, SettingsError, "unknown pretext 'rotate'.*rotation"),
        ({"weights": {"iiw": 1.0}}, SettingsError, "weights= is about dcc, rp, not 'iiw'"),
        ({"weights": {"rp": -1.0}}, SettingsError, "weight of 'rp' must be a number of at least 0"),
        ({"weights": {"rp": float("nan")}}, SettingsError, "weight of 'rp' must be a number"),
        ({"weights": {"rp": "much"}}, SettingsError, "weight of 'rp' must be a number"),
        ({"unit_weight": -0.5}, SettingsError, "weight of 'unit_weight'"),
        ({"common": ["ell"]}, TaskError, "two classes or more"),
        ({"common": ["ell", "box"]}, TaskError, "'light' has no class 'box' of common="),
        ({"common": ["ell", "ell"]}, TaskError, "two classes or more"),
        ({"common_limit": 1}, SettingsError, "not one example of each class"),
        ({"at": ["conv2"]}, SettingsError, "at= names 1 points for 2 networks"),
        ({"channels": 0}, SettingsError, "channels must be at least 1, got 0"),
        ({"epochs": 0}, SettingsError, "epochs must be at least 1"),
    ],
    ids=str,
)
def test_settings(tasks, options, error, words):
    refused(error, words, [lenet(1), lenet(2)], tasks, **options)


def test_a_task_for_each_network(tasks):
    nets = [lenet(1), lenet(2)]
    for models, taught, words in (
        (nets, tasks[:1], "there are 2 networks and 1 tasks"),
        (nets[0], tasks, "there are 1 networks and 2 tasks"),
        ([], [], "there are 0 networks and 0 tasks"),
        (nets, [tasks[0], "dark"], "a task must be a Task, got str"),
    ):
        refused(SettingsError, words, models, taught)
    refused(ContractError, "expected a Part or an nn.Module, got str", [nets[0], "b"], tasks)


def test_too_little_in_common(tasks):
    nets = [lenet(1), lenet(2)]
    one = shapes("one", ("bar", "sun", "moon"))
    for other in (strangers(), one):
        refused(TaskError, r"two classes or more.*by=\('rp',\)", nets, [tasks[0], other])
    fit = compatible(nets, [tasks[0], strangers()], by=("rp",), epochs=1)
    assert fit.record.recombination is None  # there is nothing that both know


def test_kinds_of_tasks(tasks):
    x = tasks[0].inputs
    numbers = Task(x, torch.rand(len(x)), kind="regression", name="numbers")
    labels = Task(x, torch.ones(len(x), 3).int(), kind="multilabel", name="labels")
    drawn = tasks[0].pairs("train", count=20)
    split = {each: tasks[0].indices(each) for each in ("train", "validation", "test")}
    pairs = Task(x, kind="pairs", pairs=drawn, split=split, name="pairs")
    for wrong in (numbers, labels, pairs):
        words = f"'{wrong.name}' is of kind '{wrong.kind}'; networks are made compatible on classes"
        refused(TaskError, words, [lenet(1), lenet(2)], [tasks[0], wrong])


def test_what_cannot_be_turned(tasks):
    vectors = Task(torch.rand(40, 5), [0, 1] * 20, name="rows")
    net = build("mlp", shape=(5,), hidden=(4,), classes=2)
    refused(TaskError, "rotation", [net], [vectors], by=("rp",))
    compatible([net], [vectors], by=("dcc",), epochs=1)
    oblong = Task(torch.rand(40, 1, 4, 6), [0, 1] * 20, name="oblong")
    wide = build("mlp", shape=(1, 4, 6), hidden=(4,), classes=2)
    refused(TaskError, "needs squares", [wide], [oblong], by=("rp",))
    compatible([wide], [oblong], by=("rp",), pretext=Jigsaw(), epochs=1)


def test_networks_that_do_not_fit_their_task(tasks):
    refused(TaskError, "build it with classes=3", [lenet(1), lenet(2, classes=4)], tasks)
    refused(ContractError, "the part takes 3×8×8", [lenet(1), lenet(2, channels=3)], tasks)


def test_wrong_auxiliary_heads(tasks, heads):
    nets = [lenet(2), lenet(3)]

    def try_with(error, words, given, **options):
        refused(error, words, nets, tasks, **({"at": "conv2", "auxiliaries": given} | options))

    try_with(SettingsError, "'rp', which by= does not ask for", heads, by=("dcc",))
    try_with(SettingsError, "'own', which by= does not ask for", {"own": heads["rp"]})
    try_with(SettingsError, "'rp' is of type Linear", {"rp": nn.Linear(2, 4)})
    try_with(ContractError, r"shape 84 -> 16×2×2.*say channels=", heads, at="fc2")
    try_with(ContractError, "answers bar, dot, ell, rotation asks for 0, 90", {"rp": heads["dcc"]})
    try_with(ContractError, "jigsaw asks for 0123, 1032, .* and 18 more", heads, pretext="jigsaw")
    four = Jigsaw(permutations=4)
    try_with(ContractError, "answers 0, 90, 180, 270, jigsaw asks for", heads, pretext=four)
    contract = heads["dcc"].contract
    unnamed = heads["dcc"].changed(contract=replace(contract, classes=None))
    try_with(ContractError, "does not say which classes", {"dcc": unnamed})
    foreign = heads["dcc"].changed(contract=replace(contract, classes=("sun", "moon", "sky")))
    try_with(TaskError, "two classes or more", {"dcc": foreign})


def test_frozen_heads_of_two_spaces(tasks, heads):
    other = compatible(
        lenet(5), tasks[0], by=("dcc", "rp"), at="conv2", epochs=1, batch_size=32
    ).auxiliaries
    mixed = {"dcc": heads["dcc"], "rp": other["rp"]}
    options = {"at": "conv2", "auxiliaries": mixed, "by": ("dcc", "rp")}
    words = "two spaces, conv2/.* and conv2/.*trained together"
    refused(ContractError, words, lenet(2), tasks[1], scheme="incremental", **options)
    fit = compatible(lenet(2), tasks[1], epochs=1, **options)  # trained on, they become one
    assert fit.record.space not in (heads["dcc"].contract.takes[0].space, None)


def test_a_loss_that_is_no_number_is_told_of(tasks):
    with pytest.raises(TrainingError, match="loss became"):
        compatible(lenet(1, norm="none"), tasks[0], by=("rp",), epochs=3, lr=1e30)


def test_hardly_any_validation(tasks):
    """Of one image nothing can be said with batch statistics, and nothing is."""
    task = tasks[0]
    for count in (0, 1):
        split = {each: task.indices(each) for each in ("train", "validation", "test")}
        bare = task.derived("bare", indices={**split, "validation": split["validation"][:count]})
        fit = compatible([lenet(1), lenet(2)], [bare, tasks[1]], by=("dcc", "rp"), epochs=1)
        assert fit.record.recombined[0] == (None, None)
        assert fit.record.recombined[1][0] is not None
        assert "bare rp validation accuracy" not in fit.record.final


class Numbered:
    """Batches that say which they are."""

    def __init__(self, name, count):
        self.name, self.count = name, count

    def __len__(self):
        return self.count

    def epoch(self, number, start=0):
        for batch in range(start, self.count):
            yield self.name, number, batch


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    number=st.integers(0, 3),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_turns_are_the_same_from_any_start(counts, number, data):
    source = Alternating([Numbered(place, count) for place, count in enumerate(counts)])
    whole = list(source.epoch(number))
    assert len(whole) == len(source) == max(counts) * len(counts)
    assert [place for place, _ in whole] == list(range(len(counts))) * max(counts)
    start = data.draw(st.integers(0, len(source)))
    assert list(source.epoch(number, start)) == whole[start:]


@given(counts=st.lists(st.integers(1, 5), min_size=1, max_size=4), epochs=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_source_is_gone_through_in_order(counts, epochs):
    """Over all epochs a source's batches are those of its own epochs, one after the other."""
    source = Alternating([Numbered(place, count) for place, count in enumerate(counts)])
    turns = [turn for number in range(epochs) for turn in source.epoch(number)]
    for place, count in enumerate(counts):
        mine = [batch for whose, batch in turns if whose == place]
        assert mine == [(place, *divmod(i, count)) for i in range(epochs * max(counts))]
