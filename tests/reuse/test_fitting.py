"""From a task to a model: nothing decides that must not, nothing is lost, the same comes again."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.reuse import fitting, fitting_attempts, fitting_model, fitting_pace, fitting_search
from dovetail.reuse.fitting_attempts import (
    Attempt,
    _in_folds,
    attempt,
    folds_for,
    keep,
    kept_attempt,
    sealed,
)
from dovetail.reuse.fitting_candidates import candidates_for, multiply_adds

QUICK = {"released": False, "minutes": 60, "points": 0, "show": False}


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Two folds and two epochs: what is tested is the order of things, not how good they are."""
    for name, value in {"FOLDS": 2, "EPOCHS": 2, "STEPS": 2}.items():
        monkeypatch.setattr(fitting_attempts, name, value)
    monkeypatch.setattr(fitting_search, "MOST", 1)
    for how in ("linearized", "finetune"):
        monkeypatch.delitem(fitting_attempts.PASSES, how)


@pytest.fixture(scope="module")
def wine():
    x, y = load_wine(return_X_y=True)
    return dt.Task(x.astype(np.float32), y, name="wine")


@pytest.fixture(scope="module")
def shapes():
    """Small images of bars that lie or stand, some of them hard to see."""
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(600) % 2
    x = 0.6 * torch.rand(600, 1, 8, 8, generator=draw)
    for image, label in zip(x, y, strict=True):
        place = int(torch.randint(8, (), generator=draw))
        image[0, place, :] += 0.3 * (1 - label)
        image[0, :, place] += 0.3 * label
    return dt.Task(x.clamp(0, 1), [("lying", "standing")[i] for i in y], name="bars")


@pytest.fixture(scope="module")
def network(shapes):
    return dt.train.end_to_end(
        dt.build("lenet5", channels=1, size=8, classes=2), shapes, epochs=12, show=False
    ).part


def counted(monkeypatch, stop_after=None):
    """Count the attempts that are made; like Ctrl-C after some of them."""
    made = []

    def counting(what, *args, **settings):
        if stop_after is not None and len(made) >= stop_after:
            raise KeyboardInterrupt
        made.append(what.name)
        return attempt(what, *args, **settings)

    monkeypatch.setattr(fitting_search, "attempt", counting)
    return made


# Labels that decide -------------------------------------------------------------------------------


def test_no_attempt_ever_sees_the_test_split(wine, monkeypatch):
    seen = []

    def looking(what, task, *args, **settings):
        seen.append(task)
        return attempt(what, task, *args, **settings)

    monkeypatch.setattr(fitting_search, "attempt", looking)
    fitting.fit(wine, **QUICK)
    secret = set(wine.indices("test").tolist())
    for task in seen:
        assert task.size("test") == 0
        used = torch.cat([task.indices("train"), task.indices("validation")])
        assert not secret & set(used.tolist())


def test_in_folds_each_row_is_judged_by_a_model_that_had_not_seen_it(wine):
    trained = []

    def make(task):
        rows = task.indices("train")
        trained.append(set(rows.tolist()))
        return dt.build("mlp", shape=(13,), hidden=(), classes=3, seed=len(trained))

    small = sealed(wine)
    _, outputs, rows = _in_folds(make, small, 4, seed=0)
    pool = {*small.indices("train").tolist(), *small.indices("validation").tolist()}
    assert sorted(rows.tolist()) == sorted(pool)
    assert trained[-1] == pool
    begin = 0
    for fold in trained[:-1]:
        end = begin + len(pool) - len(fold)
        assert not fold & set(rows[begin:end].tolist())
        begin = end
    assert len(outputs) == begin


def test_folds_where_validation_is_small_and_none_where_nothing_can_be_held_out(wine):
    assert folds_for(wine) == 2
    images = torch.rand(1000, 1, 4, 4)
    assert folds_for(dt.Task(images, [0, 1] * 500)) == 0
    one_each = dt.Task(
        images[:4], [0, 1, 0, 1], split={"train": [0, 1], "validation": [], "test": [2, 3]}
    )
    assert folds_for(one_each) == 0


# The model ----------------------------------------------------------------------------------------


def test_a_table_gets_a_calibrated_model_beside_its_peer(wine, tmp_path):
    found = fitting.fit(wine, **QUICK)
    record = found.record
    assert {row.how for row in record.tried} == {"closed form", "boosting", "from scratch"}
    assert record.value > 0.85
    assert record.low < record.value <= record.high
    assert record.peer is not None
    assert "oosting" in " ".join(getattr(b, "text", "") for b in record.view())
    assert found.part.contract.classes == wine.classes
    assert found.part.origin.measured["test accuracy"] == pytest.approx(record.value)
    again = dt.from_pretrained(found.part.save_pretrained(tmp_path / "model"), verify=True)
    assert dt.evaluate(again, wine).accuracy == pytest.approx(record.value)


def test_the_chosen_one_is_not_worse_on_labels_held_out_than_chance_would_make_it(wine):
    record = fitting.fit(wine, **QUICK).record
    best = max(row.held_out for row in record.tried)
    assert record.held_out >= best - 0.1


def test_numbers_have_an_interval_too():
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=draw)
    y = x[:, 0] - 2 * x[:, 1] + 0.3 * torch.randn(300, generator=draw)
    found = fitting.fit(dt.Task(x, y, kind="regression", name="sum"), **QUICK)
    assert found.record.measure == "r2"
    assert 0.8 < found.record.low < found.record.value < found.record.high < 1
    assert found.part.contract.kind == "regression"


def test_a_given_part_is_ranked_at_its_cuts_and_adapted(shapes, network, monkeypatch):
    monkeypatch.setitem(fitting_attempts.PASSES, "linearized", 6.0)
    found = fitting.fit(shapes, parts={"bars": network}, **QUICK)
    names = {place.part for place in found.ranking.places}
    assert any(name.startswith("bars at ") for name in names)
    tried = {row.how for row in found.record.tried if row.network in names}
    assert tried <= {"probe", "linearized", "upper layers", "finetune"}
    assert tried
    assert len(found.record.per_class) == 2
    idle = names - {row.network for row in found.record.tried}
    (note,) = (note for note in found.record.notes if note.startswith("Ranked, and not tried"))
    assert all(name in note for name in idle)
    wrong = round((1 - found.record.value) * found.record.n)
    assert len(found.record.mistakes) == min(wrong, fitting_model.THUMBNAILS)


def test_packing_stays_within_its_points(shapes):
    plain, packed = (fitting.fit(shapes, **{**QUICK, "points": p}) for p in (0, 3.0))
    assert packed.record.bytes < plain.record.bytes
    split = {"split": "validation"}
    before, after = (dt.evaluate(f.part, shapes, **split).accuracy for f in (plain, packed))
    assert after >= before - 0.03 - 1e-9


def test_what_was_not_done_has_its_reason(shapes, wine, monkeypatch):
    one = fitting.fit(wine, **{**QUICK, "minutes": 1e-6})  # 18 rows validate
    assert one.part.familiar is None
    assert any("unlike" in note and "too few" in note for note in one.record.notes)
    assert "Chosen among 1 model by" in one.record.how_chosen
    assert "not packed: nothing may be lost" in one.record.size
    monkeypatch.setattr(fitting_model, "_lost_points", lambda *_: lambda part: 2.0)
    two = fitting.fit(shapes, **{**QUICK, "minutes": 1e-6, "points": 1.0})
    assert two.part.familiar is not None
    assert not any("unlike" in note for note in two.record.notes)
    assert "would cost 2 points of the 1 that it may" in two.record.size
    assert two.record.bytes == two.record.plain_bytes
    no_rows = sealed(shapes).derived("bare", indices={"validation": torch.empty(0).long()})
    assert "no validation split" in fitting_model.packed(two.part, no_rows, 1.0).why_not


def test_without_a_second_to_spare_there_is_still_a_model(shapes):
    record = fitting.fit(shapes, **{**QUICK, "minutes": 1e-6}).record
    assert record.how == "closed form"
    assert any("no time" in note for note in record.notes)


@pytest.mark.parametrize("slow", [False, True])
def test_a_network_from_scratch_beside_others_waits_on_its_measured_time_alone(
    shapes, network, monkeypatch, tmp_path, slow
):
    asked = []

    def measured(task, seed):
        asked.append(len(task.inputs))
        return 1e6 if slow else 1e-9

    monkeypatch.setattr(fitting_search, "seconds_from_scratch", measured)
    for _ in range(2):  # the second run goes on, and plans by what the first measured
        found = fitting.fit(shapes, parts={"bars": network}, kept=tmp_path, **QUICK)
        (made,) = (row for row in found.record.tried if row.how == "from scratch")
        assert made.why_not == ("no time was left" if slow else "")
        assert (made.held_out is None) == slow
    assert len(asked) == 1


def test_the_pace_of_networks_is_measured_and_nothing_of_what_fails(shapes, wine):
    open_task, net = sealed(shapes), dt.build("lenet5", channels=1, size=8)
    paces = fitting_pace.Paces(None)
    assert paces.of("small", lambda: fitting_pace.seconds_from_scratch(open_task, 0)) > 0
    assert paces.of("net", lambda: fitting_pace.seconds_forward(net, open_task)) > 0
    assert paces.of("strange", lambda: fitting_pace.seconds_forward(net, wine)) == 0


def test_with_one_label_a_class_there_is_a_model_and_a_word_why_no_other(shapes, network):
    order = {"train": [0, 1], "validation": [], "test": list(range(2, 120))}
    one = dt.Task(shapes.inputs, shapes.targets, classes=shapes.classes, split=order, name="one")
    found = fitting.fit(one, parts={"bars": network}, **QUICK)
    assert found.record.held_out is None
    assert any("No network could be ranked" in note for note in found.record.notes)
    assert (found.record.network, found.record.how) == ("bars", "probe")
    assert "no labels to hold out" in found.record.how_chosen


# Again, and after an interruption -----------------------------------------------------------------


def test_the_same_seed_gives_the_same_model(shapes, network):
    one, two = (fitting.fit(shapes, parts={"bars": network}, **QUICK) for _ in range(2))
    assert one.part.digest == two.part.digest
    assert one.record.value == two.record.value


@pytest.mark.parametrize("stop_after", [1, 2])
def test_interrupted_and_called_again_it_gives_the_same_model(
    shapes, network, monkeypatch, tmp_path, stop_after
):
    whole = counted(monkeypatch)
    wanted = fitting.fit(shapes, parts={"bars": network}, **QUICK)
    counted(monkeypatch, stop_after)
    part_way = fitting.fit(shapes, parts={"bars": network}, kept=tmp_path, **QUICK)
    assert any("interrupted" in note for note in part_way.record.notes)
    assert sum(row.held_out is not None for row in part_way.record.tried) == stop_after
    rest = counted(monkeypatch)
    again = fitting.fit(shapes, parts={"bars": network}, kept=tmp_path, **QUICK)
    assert again.part.digest == wanted.part.digest
    assert rest == whole[stop_after:]


def test_interrupted_before_any_model_it_says_that_the_same_call_goes_on(wine, monkeypatch):
    counted(monkeypatch, stop_after=0)
    with pytest.raises(KeyboardInterrupt, match="goes on"):
        fitting.fit(wine, **QUICK)


@pytest.mark.parametrize("harm", ["cut", "lie", "gone"])
def test_a_damaged_attempt_is_made_again(wine, tmp_path, harm):
    open_task = sealed(wine)
    what = Attempt("perceptron", "closed form")
    done = attempt(what, open_task, None, folds=0, seed=0)
    keep(done, tmp_path)
    found = kept_attempt(what, tmp_path, open_task)
    assert found.part.digest == done.part.digest
    assert torch.equal(found.outputs, done.outputs)
    (place,) = tmp_path.iterdir()
    if harm == "cut":
        file = place / "judged.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
    elif harm == "lie":
        facts = json.loads((place / "facts.json").read_text())
        (place / "facts.json").write_text(json.dumps({**facts, "seconds": 0}))
    else:
        shutil.rmtree(place / "part")
    assert kept_attempt(what, tmp_path, open_task) is None


# Mistakes of people -------------------------------------------------------------------------------


def test_what_cannot_be_fitted_is_told_at_once(wine):
    with pytest.raises(SettingsError, match="task must be a Task"):
        fitting.fit("wine")
    labels = dt.Task(torch.rand(20, 3), torch.ones(20, 2), kind="multilabel", name="tags")
    with pytest.raises(TaskError, match="multilabel"):
        fitting.fit(labels)
    with pytest.raises(SettingsError, match="minutes"):
        fitting.fit(wine, minutes=0)


def test_a_part_for_other_inputs_is_named_and_the_rest_goes_on(wine):
    strange = dt.build("lenet5", channels=3, size=8)
    found = fitting.fit(wine, parts={"strange": strange}, **QUICK)
    assert any("strange" in note for note in found.record.notes)


# Candidates ---------------------------------------------------------------------------------------


def test_multiply_adds_of_a_convolution():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Flatten())
    part = dt.adopt(net, example=torch.zeros(1, 3, 4, 4))
    assert multiply_adds(part) == 8 * 16 * 27


def test_weights_in_the_cache_of_the_hub_are_candidates(shapes, tmp_path, monkeypatch):
    from safetensors.torch import save_file

    net = dt.build("timm/test_resnet", num_classes=5)
    folder = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k" / "snapshots" / "1f"
    folder.mkdir(parents=True)
    save_file(net.module.state_dict(), folder / "model.safetensors")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = candidates_for(shapes, None, released=True, sizes=(64,))
    name = "timm/test_resnet, 64 px"
    assert name in found
    part = found[name]
    assert part.contract.takes[0].shape == (3, 64, 64)
    assert part.contract.preprocess.size == (64, 64)
