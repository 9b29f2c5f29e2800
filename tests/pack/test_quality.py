"""The smallest container within a budget: kept always, near the best, and honest about chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from references.packing_quality import paired_rise, paired_rise_of_mistakes, smallest_of_all

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress
from dovetail.pack.levels import Ladder, path, rise_curve
from dovetail.pack.quality import smallest_within
from dovetail.pack.searching import Rise, Trials, most_steps


def normal(shape, seed=0, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def net(*shapes):
    return {f"layer{i}.weight": normal(shape, i) for i, shape in enumerate(shapes)}


def quadratic(state, weights):
    """A loss with its minimum at ``state``, which minds each tensor by its weight."""

    def loss(new):
        moved = [
            w * (new[name].double() - state[name].double()).square().mean()
            for (name, w) in zip(state, weights, strict=True)
        ]
        return float(sum(moved)) + 3.0

    return loss


@settings(max_examples=10, deadline=None)
@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=3),
    budget=st.floats(1e-7, 10),
    channels=st.booleans(),
    most_calls=st.integers(8, 60),
)
def test_the_budget_is_met_and_calls_are_bounded(weights, budget, channels, most_calls):
    state = net(*[(20, 30)] * len(weights))
    loss, called = quadratic(state, weights), []

    def counted(new):
        called.append(1)
        return loss(new)

    chosen = smallest_within(state, counted, budget, channels=channels, most_calls=most_calls)
    assert loss(decompress(chosen.data)) - loss(state) <= budget
    assert chosen.loss == pytest.approx(loss(decompress(chosen.data)))
    assert len(called) == chosen.record.calls <= most_calls
    assert chosen.baseline == 3.0


def test_it_comes_near_the_smallest_of_all():
    state = net((40, 50), (20, 30))
    loss = quadratic(state, (1.0, 30.0))
    budgets = (0.02, 0.2, 2.0)
    best = smallest_of_all(state, loss, budgets, 6)
    for budget in budgets:
        found = len(smallest_within(state, loss, budget, start_bits=6).data)
        assert found <= 1.05 * best[budget]
    assert len(set(best.values())) == 3


def test_what_the_loss_minds_more_gets_more_bits():
    state = net((40, 50), (40, 50), (40, 50))
    levels = smallest_within(state, quadratic(state, (1.0, 100.0, 1e4)), 0.05).levels
    assert levels["layer0.weight"] < levels["layer1.weight"] < levels["layer2.weight"]


def test_a_larger_budget_is_never_a_larger_file():
    state = net((40, 50), (40, 50))
    loss = quadratic(state, (1.0, 10.0))
    sizes = [len(smallest_within(state, loss, b).data) for b in (0.0, 1e-6, 1e-4, 1e-2, 1.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) >= 4


def test_a_tensor_that_is_ignored_has_two_levels():
    state = net((40, 50), (40, 50))
    chosen = smallest_within(state, quadratic(state, (1.0, 0.0)), 1e-3)
    assert chosen.levels["layer1.weight"] == 2
    assert chosen.levels["layer0.weight"] > 8


def test_a_constant_loss_lets_everything_go():
    state = net((40, 50), (40, 50))
    assert set(smallest_within(state, lambda new: 1.0, 0.0).levels.values()) == {2}


def test_no_budget_keeps_everything_exactly():
    state = net((40, 50), (40, 50))
    chosen = smallest_within(state, quadratic(state, (1.0, 1.0)), 0.0)
    assert (chosen.levels, chosen.loss) == ({}, chosen.baseline)
    back = decompress(chosen.data)
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_the_same_bytes_again_and_nothing_given_is_changed():
    state = net((40, 50), (40, 50))
    before = {name: tensor.clone() for name, tensor in state.items()}
    loss = quadratic(before, (1.0, 10.0))
    first, second = (smallest_within(state, loss, 0.01) for _ in range(2))
    assert first.data == second.data
    assert first.record == second.record
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_what_is_measured_is_what_comes_back():
    state = {"w": normal((40, 50)).bfloat16(), "n": torch.tensor(3), "v": normal(300).double()}
    seen = []

    def measure(new):
        seen.append(new)
        return float(sum((new[k].double() - state[k].double()).square().sum() for k in state))

    chosen = smallest_within(state, measure, 1.0)
    back = decompress(chosen.data)
    assert {name: (t.dtype, t.shape) for name, t in seen[-1].items()} == {
        name: (t.dtype, t.shape) for name, t in state.items()
    }
    assert any(all(torch.equal(new[name], back[name]) for name in back) for new in seen[:-1])
    assert set(chosen.levels) == {"w", "v"}


def test_what_no_bins_can_hold_is_kept_exactly():
    state = {
        "w": normal((40, 50)),
        "mask": torch.full((40, 50), -math.inf),
        "ones": torch.ones(40, 50),
        "few": normal(20),
        "left[0]*": normal((40, 50), 2),
        "counts": torch.arange(1000),
        "none": torch.zeros(0, 5),
    }
    loss = quadratic({"w": state["w"]}, (1.0,))
    chosen = smallest_within(state, loss, 0.1, lossless=("left*",))
    assert set(chosen.levels) == {"w"}
    back = decompress(chosen.data)
    assert all(torch.equal(back[name], state[name]) for name in state if name != "w")


def test_with_nothing_to_quantise_it_is_exact():
    state = {"bias": normal(10), "steps": torch.tensor(3)}
    chosen = smallest_within(state, lambda new: 0.5, 0.1)
    assert (chosen.levels, chosen.record.calls) == ({}, 2)
    assert torch.equal(decompress(chosen.data)["bias"], state["bias"])


def test_a_measure_may_load_the_model_whose_weights_were_given():
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(40, 50), torch.randn(30, 40)
    before = model.weight.detach().clone()
    with torch.no_grad():
        target = model(inputs)

    @torch.no_grad()
    def measure(state):
        model.load_state_dict(state)
        return float((model(inputs) - target).square().mean())

    chosen = smallest_within(model.state_dict(), measure, 0.0)
    assert chosen.levels == {}
    assert torch.equal(decompress(chosen.data)["weight"], before)
    assert measure(decompress(chosen.data)) == 0.0


def test_names_of_one_tensor_are_rounded_alike():
    w, other = normal((40, 50)), normal((40, 50), 1)
    state = {"in": w, "other": other, "out": w, "turned": other.T}

    def measure(new):
        assert torch.equal(new["in"], new["out"])
        return float((new["in"] - given).square().mean())

    given = w.clone()
    chosen = smallest_within(state, measure, 0.01)
    back = decompress(chosen.data)
    assert chosen.levels["in"] == chosen.levels["out"] < 256
    assert torch.equal(back["in"], back["out"])
    assert torch.equal(back["other"].T, back["turned"])
    kept = smallest_within(state, measure, 0.01, lossless=("out",))
    assert kept.levels == {}


# What chance may do


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=2, max_size=20))
@settings(max_examples=50, deadline=None)
def test_the_error_is_that_of_paired_differences(pairs):
    before, after = zip(*[(a + 10.123, b + 10.456) for a, b in pairs], strict=True)
    rise = Rise.between(np.array(before), np.array(after), margin=2.0)
    mean, error = paired_rise(before, after)
    assert rise.mean == pytest.approx(mean, abs=1e-12)
    assert rise.error == pytest.approx(error, abs=1e-12)
    assert rise.most == rise.mean + 2 * rise.error


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=40))
@settings(max_examples=50, deadline=None)
def test_of_mistakes_half_a_pair_more_each(pairs):
    before, after = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    rise = Rise.between(before, after, margin=1.0)
    assert rise.mean == pytest.approx(float((after - before).mean()))
    assert rise.error == pytest.approx(paired_rise_of_mistakes(*zip(*pairs, strict=True)))
    points = Rise.between(100 * before, 100 * after, margin=1.0)  # whatever a mistake counts
    if before.any() or after.any():
        assert points.error == pytest.approx(100 * rise.error)


def test_a_margin_is_kept_where_losses_come_one_by_one():
    torch.manual_seed(0)
    inputs = torch.randn(400, 40)
    state = {"w": normal((40, 20))}
    target = inputs @ state["w"] + 0.1 * torch.randn(400, 20)

    def losses(new):
        return (inputs @ new["w"] - target).square().mean(1)

    sure, unsure = (smallest_within(state, losses, 1e-3, margin=m) for m in (3.0, 0.0))
    assert sure.record.rise + 3.0 * sure.record.error == pytest.approx(sure.record.most)
    assert sure.record.most <= 1e-3
    assert sure.levels["w"] >= unsure.levels["w"]
    assert sure.record.examples == 400


def test_the_budget_holds_on_other_examples():
    """Losses of random examples: chosen on some, the rise is within the budget on many others."""
    state = net((20, 30), (20, 30))
    exceeded = 0
    for seed in range(8):
        directions = normal((4, 1200), 100 + seed, 1 / math.sqrt(600))

        def losses(new, draw, directions=directions):
            moved = torch.cat([(new[name] - state[name]).reshape(-1) for name in state])
            return (draw @ (directions @ moved)).square()

        chosen = smallest_within(
            state, lambda new, s=seed: losses(new, normal((200, 4), 1000 + s)), 0.02
        )
        fresh = losses(decompress(chosen.data), normal((20_000, 4), 7))
        exceeded += float(fresh.mean()) > 0.02
        assert len(chosen.levels) == 2
    assert exceeded <= 1  # one in twenty is expected


def test_no_change_among_few_examples_shows_little():
    state = net((40, 50))
    few, many = (
        smallest_within(state, lambda new, n=n: torch.zeros(n), 0.001) for n in (100, 10_000)
    )
    assert few.levels == {}
    assert many.levels == {"layer0.weight": 2}


# What is refused


@pytest.mark.parametrize("loss", [math.nan, math.inf, [0.1, math.nan]])
def test_a_loss_that_is_no_number_is_refused(loss):
    with pytest.raises(TaskError, match="not finite"):
        smallest_within(net((40, 50)), lambda new: loss, 0.1)


def test_a_loss_that_is_no_number_with_few_bits_is_over_the_budget():
    state = net((40, 50))

    def loss(new):
        moved = float((new["layer0.weight"] - state["layer0.weight"]).abs().max())
        return math.nan if moved > 0.1 else 1.0

    chosen = smallest_within(state, loss, 0.5)
    assert loss(decompress(chosen.data)) == 1.0
    assert 4 <= chosen.bits["layer0.weight"] <= 7


@pytest.mark.parametrize(
    ("gives", "told"),
    [
        (lambda new: torch.zeros(3, 2), "one an example"),
        (lambda new: [], "one an example"),
        (lambda new: "good", "must give a number"),
        (lambda new: None, "finite|must give"),
    ],
)
def test_a_measure_that_gives_something_else(gives, told):
    with pytest.raises((SettingsError, TaskError), match=told):
        smallest_within(net((40, 50)), gives, 0.1)


def test_other_examples_every_time_are_refused():
    counts = iter(range(5, 100))
    with pytest.raises(TaskError, match="5 losses at first and 6 now"):
        smallest_within(net((40, 50)), lambda new: torch.zeros(next(counts)), 0.1)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_budget": -0.1},
        {"loss_budget": math.nan},
        {"loss_budget": math.inf},
        {"loss_budget": 0.1, "margin": -1.0},
        {"loss_budget": 0.1, "start_bits": 0},
        {"loss_budget": 0.1, "start_bits": 17},
        {"loss_budget": 0.1, "most_calls": 7},
        {"loss_budget": 0.1, "lossless": "w"},
    ],
)
def test_settings_out_of_range(settings):
    with pytest.raises(SettingsError):
        smallest_within(net((40, 50)), lambda new: 1.0, **settings)


def test_a_loss_that_changes_its_mind_ends_with_exact_weights():
    state, calls = net((40, 50)), []
    usual = smallest_within(state, lambda new: 0.0, 0.5).record.calls

    def fickle(new):
        calls.append(1)
        return 0.0 if len(calls) < usual else 1.0  # from the last measurement on

    chosen = smallest_within(state, fickle, 0.5)
    assert (chosen.levels, chosen.loss) == ({}, 1.0)  # as it was measured
    assert len(calls) > usual
    assert torch.equal(decompress(chosen.data)["layer0.weight"], state["layer0.weight"])


# The pieces


def test_many_tensors_are_not_tried_one_by_one():
    state = net(*[(20, 30)] * 10)
    loss = quadratic(state, [10.0**-i for i in range(10)])
    chosen = smallest_within(state, loss, 0.01, most_calls=20)
    assert chosen.record.calls <= 20
    assert not any(tensor.alone for tensor in chosen.record.tensors)
    assert chosen.loss - chosen.baseline <= 0.01
    assert len(chosen.data) < len(compress(state))


def test_many_tensors_are_compared_by_a_probe_where_there_is_one():
    state = net(*[(20, 30)] * 10)
    loss = quadratic(state, [10.0**-i for i in range(10)])
    probed, words = [], []

    def probe(new):
        probed.append(1)
        return 1e-6 * (loss(new) - 3.0)  # in a unit of its own

    without = smallest_within(state, loss, 0.01, most_calls=20)
    chosen = smallest_within(state, loss, 0.01, most_calls=20, probe=probe, progress=words.append)
    assert chosen.record.calls <= 20
    assert len(probed) <= 21
    assert len(words) == len(probed) + chosen.record.calls <= most_steps(10, 20)
    assert chosen.loss - chosen.baseline <= 0.01
    assert len(chosen.data) < 0.8 * len(without.data)
    levels = [chosen.levels.get(name, 1 << 10) for name in state]
    assert levels[0] > levels[1] > levels[2] >= levels[9]


def test_a_probe_is_not_asked_where_each_tensor_can_be_measured():
    state = net((20, 30), (20, 30))
    loss = quadratic(state, [1.0, 10.0])
    asked = smallest_within(state, loss, 0.01, most_calls=60, probe=lambda new: 1 / 0)
    assert asked.data == smallest_within(state, loss, 0.01, most_calls=60).data


def test_a_path_takes_the_cheapest_first_and_every_tensor_in_order():
    levels = [
        Ladder("a", 400, {3: 300, 2: 200, 1: 100}, {}),
        Ladder("b", 40, {3: 30, 2: 20, 1: 10}, {}),
    ]
    rises = {name: {3: 1.0, 2: 4.0, 1: 16.0} for name in "ab"}
    steps = path(levels, rises)
    assert steps == [("a", 3), ("a", 2), ("b", 3), ("a", 1), ("b", 2), ("b", 1)]


def test_a_level_that_never_pays_is_left_out():
    level = Ladder("a", 400, {3: 390, 2: 380, 1: 100}, {})
    assert path([level], {"a": {3: 9.0, 2: 9.5, 1: 10.0}}) == [("a", 1)]


def test_a_rise_between_two_known_ones_lies_between():
    level = Ladder("w", 1, {4: 1, 3: 1, 2: 1, 1: 1}, {4: 1.0, 3: 4.0, 2: 16.0, 1: 64.0})
    curve = rise_curve(level, {4: 0.1, 2: 0.9})
    assert curve[3] == pytest.approx(0.3)
    assert curve[1] == pytest.approx(3.6)
    by_chance = rise_curve(level, {4: 0.5, 2: 0.1})
    assert by_chance[4] <= by_chance[3] <= by_chance[2] <= by_chance[1]


def test_the_record_is_kept_and_shown(tmp_path):
    state = net((40, 50), (40, 50))
    words = []
    chosen = smallest_within(state, quadratic(state, (1.0, 10.0)), 0.01, progress=words.append)
    record = chosen.record
    assert load_record(record.save(tmp_path / "search.json")) == record
    assert len(words) == record.calls
    assert record.size == len(chosen.data)
    assert record.full == 2 * 4 * 2000
    shown = str(record.view())
    assert "times smaller" in shown
    assert "layer1.weight" in shown


def test_trials_count_and_compare_with_the_first():
    trials = Trials(lambda new: new["w"].square(), {"w": torch.tensor([1.0, 3.0])}, most_calls=5)
    assert (trials.baseline, trials.examples, trials.remaining) == (5.0, 2, 4)
    assert trials.rise({"w": torch.tensor([2.0, 3.0])}, "").mean == 1.5
    assert trials.remaining == 3


def test_a_pattern_that_protects_nothing_is_refused():
    state = {"head.weight": torch.randn(30, 30)}
    with pytest.raises(SettingsError, match=r"no tensor matches lossless 'hed\.\*'"):
        smallest_within(state, quadratic(state, (1.0,)), 0.1, lossless=("hed.*",))
