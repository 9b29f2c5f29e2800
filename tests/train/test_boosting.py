"""Boosted trees as tensors give what scikit-learn's own give, and no file makes them run astray."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

import dovetail as dt
from dovetail.core.errors import ContractError, RecipeError, TaskError
from dovetail.measure.forward import outputs_of
from dovetail.parts.heads import with_temperature
from dovetail.train.boosting import boost


def table(load, kind="classes"):
    x, y = load(return_X_y=True)
    targets = y if kind == "classes" else y.astype(np.float32)
    return dt.Task(x.astype(np.float32), targets, kind=kind, name="table")


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer], ids=["three", "two"])
def test_classes_as_scikit_learn_tells_them(load):
    task = table(load)
    part = boost(task, rounds=20, leaves=7, seed=0).part
    x, y = (values.double().numpy() for values in task.subset("train"))
    peer = HistGradientBoostingClassifier(
        max_iter=20, max_leaf_nodes=7, early_stopping=False, random_state=0
    ).fit(x, y)
    new = task.subset("test")[0]
    ours = part(new).double().softmax(1).numpy()
    np.testing.assert_allclose(ours, peer.predict_proba(new.double().numpy()), atol=1e-5)


def test_numbers_as_scikit_learn_tells_them(tmp_path):
    task = table(load_diabetes, "regression")
    part = boost(task, rounds=20, seed=0).part
    x, y = (values.double().numpy() for values in task.subset("train"))
    settings = {"max_iter": 20, "early_stopping": False, "random_state": 0}
    peer = HistGradientBoostingRegressor(**settings).fit(x, y)
    new = task.subset("test")[0]
    wanted = peer.predict(new.double().numpy())
    np.testing.assert_allclose(part(new)[:, 0].numpy(), wanted, rtol=1e-5)
    again = dt.from_pretrained(part.save_pretrained(tmp_path / "trees"), verify=True)
    assert torch.equal(again(new), part(new))


def test_a_threshold_itself_goes_left():
    task = dt.Task(torch.tensor([[0.0], [1.0]] * 40), [0, 1] * 40, name="steps")
    part = boost(task, rounds=3).part
    cut = float(part.module[0].threshold[0, 0])
    at, above = part(torch.tensor([[cut], [np.nextafter(np.float32(cut), np.float32(2))]]))
    assert at.argmax() == 0
    assert above.argmax() == 1


def test_a_temperature_goes_into_the_leaves():
    task = table(load_wine)
    part = boost(task, rounds=5).part
    x = task.subset("test")[0]
    torch.testing.assert_close(with_temperature(part, 2.5)(x), part(x) / 2.5)


@pytest.mark.parametrize("name", ["feature", "left"])
def test_trees_that_lead_nowhere_are_our_error(name):
    part = boost(table(load_wine), rounds=2).part
    getattr(part.module[0], name)[0, 0] = 10_000
    with pytest.raises(ContractError):
        outputs_of(part, torch.rand(3, 13))


@pytest.mark.parametrize(
    "wrong",
    [{"depth": 10**9}, {"trees": 3, "outputs": 2}, {"outputs": 2, "trees": 2, "pair": True}],
    ids=["deep", "uneven", "pair"],
)
def test_a_recipe_of_impossible_trees_is_refused(wrong):
    with pytest.raises(RecipeError, match="boosted-trees"):
        dt.build("boosted-trees", **wrong)


def test_images_are_refused():
    task = dt.Task(torch.rand(20, 1, 4, 4), [0, 1] * 10, name="pictures")
    with pytest.raises(TaskError, match="trees are for tables"):
        boost(task)
