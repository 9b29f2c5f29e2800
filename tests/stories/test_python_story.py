"""The whole story in Python: a part is trained, cut, shelved, found, joined: as good as before."""

import pytest
import torch
from torch import nn

import dovetail as dt


@pytest.fixture(scope="module")
def task():
    return dt.load_task("digits")


@pytest.fixture(scope="module")
def trained(task):
    net = dt.build("mlp", hidden=(16,), norm="batch")
    return dt.train.end_to_end(net, task, epochs=3).part


def test_from_training_to_the_shelf_and_back(trained, task, tmp_path):
    before = dt.evaluate(trained, task)
    assert before.accuracy > 0.8

    shelf = dt.Shelf(tmp_path / "shelf")
    front, back = dt.cut(trained, at="hidden1")
    shelf.add(front, name="mlp.front", tags=("mine",))
    shelf.add(back, name="mlp.back")

    (found,) = shelf.find(fits=front)
    assert found.ref == "mlp.back@1"
    again = dt.join(shelf.get("mlp.front"), shelf.get(found))
    after = dt.evaluate(again, task)
    assert after.measures == before.measures
    assert after.confusion == before.confusion
    assert torch.equal(
        dt.predict(again, task.inputs[:9]).probabilities,
        dt.predict(trained, task.inputs[:9]).probabilities,
    )
    assert shelf.verify().ok
    shelf.add(again, name="mlp")
    assert dt.evaluate(shelf.get("mlp"), task).measures == before.measures


def test_parts_that_were_not_made_to_fit(trained, task):
    other = dt.train.end_to_end(dt.build("mlp", hidden=(16,), norm="batch", seed=1), task, epochs=3)
    front, _ = dt.cut(trained, at="hidden1")
    _, head = dt.cut(other.part, at="hidden1")
    with pytest.raises(dt.DovetailError, match="space"):
        dt.join(front, head)
    forced = dt.evaluate(dt.join(front, head, force=True), task)
    assert forced.accuracy < 0.6 < dt.evaluate(trained, task).accuracy


def test_training_a_front_renews_its_space(trained, task):
    front, back = dt.cut(trained, at="hidden1")
    tuned = dt.train.end_to_end(dt.join(front, back), task, epochs=1).part
    new_front, _ = dt.cut(tuned, at="0.hidden1")
    with pytest.raises(dt.DovetailError, match="space"):
        dt.join(new_front, back)


def test_a_network_of_ones_own(task, tmp_path):
    def make():
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))

    fit = dt.train.end_to_end(make(), task, epochs=2)
    assert dt.evaluate(fit.part, task).accuracy > 0.6
    with pytest.raises(dt.DovetailError, match="@dt"):
        dt.Shelf(tmp_path).add(fit.part, name="mine")
    assert len(dt.Shelf(tmp_path)) == 0

    made = dt.builder("story-net")(make)
    fit = dt.train.end_to_end(made(), task, epochs=2)
    dt.Shelf(tmp_path).add(fit.part, name="mine")
    again = dt.Shelf(tmp_path).get("mine")
    assert dt.evaluate(again, task).measures == dt.evaluate(fit.part, task).measures
