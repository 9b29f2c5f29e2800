"""Ways side by side: the same labels, the measures by an independent reckoning, what is kept."""

import json
import math

import numpy as np
import pytest
import torch

from dovetail.adapt.probe import Probe
from dovetail.adapt.ways import WAYS, Choices, compare_ways, drawn
from dovetail.adapt.ways_record import Adaptation, Trial
from dovetail.core.errors import SettingsError, ShelfError, TaskError
from dovetail.core.records import load_record
from dovetail.core.views import Figure, Table
from dovetail.jobs.adapt import adapt
from dovetail.measure.evaluate import evaluate
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.tasks.task import Task


@pytest.fixture(scope="module")
def task():
    return load_task("digits[3,1,0]")


@pytest.fixture(scope="module")
def part():
    return build("mlp", shape=(1, 8, 8), hidden=(16,), classes=4)


@pytest.fixture(scope="module")
def compared(part, task):
    return compare_ways(part, task, labels=(5, 2), draws=2, name="net")


@pytest.fixture(scope="module")
def waves():
    draw = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(120, 1, generator=draw) - 3
    y = torch.sin(2 * x[:, 0]) + 0.1 * torch.randn(120, generator=draw)
    return Task(x, y, kind="regression", name="waves")


def test_every_way_and_draw_is_measured(compared):
    record = compared.record
    assert [(t.how, t.labels, t.seed) for t in record.trials] == [
        (how, labels, seed) for labels in (2, 5) for seed in (0, 1) for how in WAYS
    ]
    assert {t.n for t in record.trials} == {6, 15}
    assert min(record.mean(how, 5, "accuracy") for how in WAYS) > 0.8


def test_measures_are_those_of_the_estimator(compared, task):
    inputs, targets = task.subset("test")
    wanted = np.array(task.classes)[targets.numpy()]
    for trial in compared.record.trials:
        if (trial.labels, trial.seed) != (5, 0):
            continue
        estimator = compared.estimators[trial.how]
        probs = estimator.predict_proba(inputs)
        names = estimator.classes_.tolist()
        loss = -np.mean(
            [math.log(p[names.index(name)]) for p, name in zip(probs, wanted, strict=True)]
        )
        squares = [
            sum((q - (name == other)) ** 2 for q, other in zip(p, names, strict=True))
            for p, name in zip(probs, wanted, strict=True)
        ]  # fmt: skip
        assert trial.measures["accuracy"] == np.mean(estimator.predict(inputs) == wanted)
        assert trial.measures["nll"] == pytest.approx(loss)
        assert trial.measures["brier"] == pytest.approx(np.mean(squares))


def test_the_best_is_best_on_validation(compared, task):
    inputs, targets = task.subset("validation")
    wanted = np.array(task.classes)[targets.numpy()]
    right = {how: np.mean(e.predict(inputs) == wanted) for how, e in compared.estimators.items()}
    told = compared.validation
    assert {how: said["accuracy"] for how, said in told.items()} == pytest.approx(right)
    equals = [how for how in right if right[how] == max(right.values())]
    assert compared.best == min(equals, key=lambda how: told[how]["nll"])


def test_the_record_comes_back_and_shows_what_it_has(compared, tmp_path):
    record = compared.record
    assert load_record(record.save(tmp_path / "r.json")) == record
    table, *figures = [b for b in record.view() if isinstance(b, Table | Figure)]
    assert len(table.rows) == 6
    assert [f.log_x for f in figures] == [True, True, False]
    lines = figures[0].series
    assert [line.name for line in lines] == list(WAYS)
    for line in lines:
        assert all(
            low <= y <= high for low, y, high in zip(line.low, line.y, line.high, strict=True)
        )
    assert len(record.brief()) == 3


def test_one_draw_of_one_count_has_no_curve_of_either():
    trials = tuple(Trial(how, 3, 6, 0, {"rmse": 1.5}, 0.1, 0.2) for how in ("probe", "finetune"))
    record = Adaptation(part="net", task="heat", n=9, trials=trials)
    assert [type(block).__name__ for block in record.view()] == ["Text", "Table", "Text"]
    assert record.summary == "With 3 labels: probe errs by 1.5, finetune 1.5."


def test_numbers_have_bands_and_coverage(waves):
    part = build("mlp", shape=(1,), hidden=(32,), classes=1, activation="tanh")
    found = compare_ways(part, waves, labels=(30,), choices=Choices(prior="layers"))
    first = {trial.how: trial.measures for trial in found.record.trials}
    assert set(first["linearized"]) == {"rmse", "nll", "coverage"}
    assert set(first["finetune"]) == {"rmse"}
    inputs, targets = waves.subset("test")
    mean, std = found.estimators["linearized"].predict(inputs, return_std=True)
    inside = np.mean(np.abs(targets.numpy() - mean) <= 1.6448536 * std)
    assert first["linearized"]["coverage"] == pytest.approx(inside)
    bands = {band.how: band for band in found.record.bands}
    assert len(bands["linearized"].low) == len(bands["linearized"].x)
    assert bands["finetune"].low == ()
    assert len(found.record.points) == 30
    marks = [
        f.series[1] for f in found.record.view() if isinstance(f, Figure) and "predicts" in f.title
    ]
    assert [m.points for m in marks] == [True] * 3  # fmt: skip
    assert found.best == min(WAYS, key=lambda how: found.validation[how]["rmse"])


def test_a_temperature_lowers_the_loss_on_the_split_it_was_fitted_to(part, task):
    def losses(temperature):
        found = compare_ways(part, task, labels=(2,), choices=Choices(temperature=temperature))
        inputs, targets = task.subset("validation")
        wanted = np.array(task.classes)[targets.numpy()]
        losses = {}
        for how, estimator in found.estimators.items():
            names = estimator.classes_.tolist()
            probs = estimator.predict_proba(inputs)
            columns = [names.index(name) for name in wanted]
            losses[how] = -np.log(probs[np.arange(len(wanted)), columns]).mean()
        return losses, found.record.trials

    plain, _ = losses("none")
    tempered, trials = losses("validation")
    assert all(tempered[how] <= plain[how] + 1e-9 for how in WAYS)
    assert all(trial.temperature for trial in trials)


def test_labels_are_drawn_from_train_only(waves):
    small = drawn(waves, 7, seed=3)
    assert set(small.indices("train").tolist()) < set(waves.indices("train").tolist())
    assert small.indices("test").equal(waves.indices("test"))
    assert not small.indices("train").equal(drawn(waves, 7, seed=4).indices("train"))


def test_all_labels_are_all_of_them_once(part, task):
    found = compare_ways(part, task, ways=["probe"], labels=(2, "all"), draws=2)
    few, again, every = found.record.trials
    assert (few.n, again.n, every.n) == (6, 6, task.size("train"))
    assert found.record.summary.startswith("With all labels: probe reaches")
    table = next(block for block in found.record.view() if isinstance(block, Table))
    assert [row[0] for row in table.rows] == [2, "all"]
    assert found.estimators["probe"].score(*_named(task)) == pytest.approx(
        every.measures["accuracy"]
    )
    assert compare_ways(part, task, ways=["probe"], labels="all").record.trials[0].n == every.n


def _named(task):
    x, y = task.subset("test")
    return x, np.array(task.classes)[y.numpy()]


def test_all_numbers(waves):
    found = compare_ways(build("mlp", shape=(1,), classes=1), waves, ways=["probe"], labels=["all"])
    assert found.record.trials[0].n == waves.size("train")


@pytest.fixture
def stopped_in_finetuning(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dovetail.adapt.ways.FineTuned.fit", interrupted)


def test_what_was_done_before_an_interrupt_is_measured(part, task, stopped_in_finetuning):
    found = compare_ways(part, task, labels=(2, 5), ways=["probe", "finetune"])
    assert found.stopped == "finetune with 2 labels"
    assert list(found.estimators) == ["probe"]
    assert found.best == "probe"
    assert [trial.how for trial in found.record.trials] == ["probe"]
    assert "Stopped at finetune with 2 labels" in str(found.record.view())
    with pytest.raises(KeyboardInterrupt):
        compare_ways(part, task, ways=["finetune"])


def test_a_way_that_was_stopped_later_leaves_the_most_labels_done(part, task, monkeypatch):
    whole = Probe.fit

    def until_five(self, X, y):
        if len(y) > 10:
            raise KeyboardInterrupt
        return whole(self, X, y)

    monkeypatch.setattr("dovetail.adapt.ways.Probe.fit", until_five)
    found = compare_ways(part, task, labels=(2, 5), ways=["linearized", "probe"])
    assert found.stopped == "probe with 5 labels"
    assert list(found.estimators) == ["linearized"]
    assert len(found.record.trials) == 3
    assert found.record.summary.startswith("With 5 labels a class: linearized")
    found.record.view()


def test_the_best_of_what_was_done_is_shelved(part, tmp_path, stopped_in_finetuning):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(part, "net")
    how = ["probe", "finetune"]
    said = adapt("net", "digits[3,1,0]", how=how, labels=[2], shelf=shelf.folder)
    assert said.data["kept"] == "probe"
    assert said.data["stopped"] == "finetune with 2 labels"
    unlucky = adapt(
        "net", "digits[3,1,0]", how=how, labels=[2], keep="finetune", shelf=shelf.folder
    )
    assert unlucky.data["ref"] is None


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"ways": ["linearised"]}, SettingsError, "did you mean linearized"),
        ({"ways": []}, SettingsError, "name a way"),
        ({"ways": ["probe", "probe"]}, SettingsError, "twice"),
        ({"labels": (0,)}, SettingsError, "counts from 1"),
        ({"labels": ("every",)}, SettingsError, "or of labels 'all'"),
        ({"choices": Choices(method="magic")}, SettingsError, "method is one of"),
        ({"draws": 0}, SettingsError, "counts from 1"),
        ({"labels": (5000,)}, TaskError, "not 5000"),
        ({"choices": Choices(temperature="hot")}, SettingsError, "'none' or 'validation'"),
    ],
)
def test_what_is_refused(part, task, options, error, words):
    with pytest.raises(error, match=words):
        compare_ways(part, task, **options)


def test_only_classes_and_numbers(part, waves):
    labels = (torch.rand(20, 3) > 0.5).float()
    with pytest.raises(TaskError, match="classes or numbers"):
        compare_ways(part, Task(torch.rand(20, 4), labels, kind="multilabel"))
    with pytest.raises(SettingsError, match="numbers have none"):
        compare_ways(part, waves, choices=Choices(temperature="validation"))
    with pytest.raises(TaskError, match="not 500"):
        compare_ways(part, waves, labels=(500,))


def test_what_is_shelved_is_the_estimator(part, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(part, "net")
    for how in WAYS:
        said = adapt("net", "digits[3,1,0]", how=[how], labels=[3], shelf=shelf.folder, name=how)
        kept = shelf.get(said.data["ref"])
        (trial,) = said.records[0].trials
        reached = evaluate(kept, load_task("digits[3,1,0]")).accuracy
        assert reached == pytest.approx(trial.measures["accuracy"])
        assert kept.origin.measured["test accuracy"] == pytest.approx(reached)
        assert kept.origin.settings["labels"] == 3
    nothing = adapt(
        "net", "digits[3,1,0]", how=["probe"], labels=[2], keep="none", shelf=shelf.folder
    )
    assert nothing.data["ref"] is None
    assert len(shelf) == 4


def test_options_of_no_way_are_refused(part, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(part, "net")
    for option, words in (("prior", "layers"), ("params", ("x",)), ("link", "mc")):
        with pytest.raises(SettingsError, match=f"{option} is for how="):
            adapt("net", "digits", how=["probe"], shelf=shelf.folder, **{option: words})
    with pytest.raises(SettingsError, match="keep is one of"):
        adapt("net", "digits", how=["probe"], keep="finetune", shelf=shelf.folder)
    with pytest.raises(ShelfError):
        adapt("nett", "digits", shelf=shelf.folder)
    assert len(shelf) == 1


def test_a_plan_measures_and_keeps_nothing(part, tmp_path):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(part, "net")
    said = adapt("net", "digits[3,1,0]", labels=[50], plan=True, shelf=shelf.folder)
    assert said.data["labels"] == 150
    assert said.data["method"] in said.data["ways"]
    json.dumps(said.data)
    assert said.records == ()
    assert len(shelf) == 1
    head, both = said.data["groups"].values()
    assert head["passes"] == 1.0
    assert both["passes"] > 1.0
    assert both["bytes"] > head["bytes"] > 0
    whole = adapt("net", "digits[3,1,0]", labels=["all"], plan=True, shelf=shelf.folder)
    assert whole.data["labels"] == load_task("digits[3,1,0]").size("train")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"method": "magic"}, "method is one of"), ({"keep": "nothing"}, "keep is one of")],
)
def test_a_plan_refuses_what_the_run_would(part, tmp_path, monkeypatch, wrong, words):
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(part, "net")
    monkeypatch.setattr("dovetail.jobs.adapt.estimator_for", None)  # before any work
    with pytest.raises(SettingsError, match=words):
        adapt("net", "digits[3,1,0]", plan=True, shelf=shelf.folder, **wrong)
