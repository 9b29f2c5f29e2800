"""In modules nearly as good as end to end, and one label a class nearly as good as all of them."""

import pytest

import dovetail as dt
from dovetail.tasks.derive import few


@pytest.fixture(scope="module")
def task():
    return dt.load_task("digits")


def accuracy(train, task, epochs=8, **options):
    net = dt.build("lenet5", size=8, norm="batch", unit=True)
    return dt.evaluate(train(net, task, epochs=epochs, **options).part, task).accuracy


def test_modules_on_digits(task):
    whole = accuracy(dt.train.end_to_end, task)
    every = accuracy(dt.train.modular, task)
    ten = accuracy(dt.train.modular, task, labels_per_class=1)
    pairs = accuracy(dt.train.modular, task, labels_per_class=1, supervision="pairs")
    assert whole > 0.95
    assert every > whole - 0.02
    assert ten > every - 0.02
    assert pairs > whole - 0.05


def test_the_same_ten_labels_do_little_end_to_end(task):
    assert accuracy(dt.train.end_to_end, few(task, 1), epochs=50, batch_size=10) < 0.8
