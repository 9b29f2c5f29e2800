"""Names of classes stay with a part from the labels of a task to what a packed one predicts."""

import numpy as np
import pytest
import torch

from dovetail.adapt.finetuned import FineTuned
from dovetail.adapt.probe import Probe
from dovetail.core.errors import TaskError
from dovetail.measure.predict import predict
from dovetail.parts.part import build, from_pretrained
from dovetail.reuse.packing import pack_part
from dovetail.tasks.derive import few, only_classes
from dovetail.tasks.task import Task

NAMES = ("owl", "ant", "cat")  # not in the order of the alphabet


@pytest.fixture(scope="module")
def animals():
    draw = torch.Generator().manual_seed(0)
    codes = torch.arange(90) % 3
    centres = torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
    x = centres[codes] + 0.5 * torch.randn(90, 2, generator=draw)
    return Task(x, [NAMES[code] for code in codes], classes=NAMES, name="animals")


@pytest.fixture(params=[Probe, FineTuned])
def estimator(request):
    net = build("mlp", shape=(2,), hidden=(8,), classes=3)
    more = {"steps": 4} if request.param is FineTuned else {}
    return request.param(net, random_state=0, **more)


def test_a_smaller_task_has_the_names_of_the_larger(animals):
    assert few(animals, 4).classes == NAMES
    assert only_classes(animals, ("cat", "ant")).classes == ("cat", "ant")
    _, codes = few(animals, 4).subset("train")
    assert sorted(codes.tolist()) == [0] * 4 + [1] * 4 + [2] * 4  # places in the names


@pytest.mark.parametrize("labels", ["names", "places"])
def test_names_are_in_the_part_packed_saved_and_read(animals, estimator, labels, tmp_path):
    x, codes = few(animals, 5).subset("train")
    if labels == "names":
        part = estimator.fit(x, np.array(NAMES)[codes.numpy()]).to_part()
        assert part.contract.classes == ("ant", "cat", "owl")
    else:
        part = estimator.fit(x, codes, class_names=animals.classes).to_part()
        assert part.contract.classes == NAMES
        assert estimator.classes_.tolist() == [0, 1, 2]  # it predicts what it was given
    small = pack_part(part).part
    read = from_pretrained(small.save_pretrained(tmp_path / "small"))
    plain = from_pretrained(part.save_pretrained(tmp_path / "plain"))
    assert small.contract.classes == read.contract.classes == plain.contract.classes
    assert read.contract.classes == part.contract.classes
    test, wanted = animals.subset("test")
    said = predict(read, test)
    assert np.mean(np.array(said.labels) == np.array(NAMES)[wanted.numpy()]) > 0.9
    assert repr(said).startswith(f"Predictions({said.labels[0]} ")


def test_some_of_the_names_are_enough(animals, estimator):
    x, codes = only_classes(animals, ("ant", "cat")).subset("train")
    places = codes + 1  # among all names
    part = estimator.fit(x, places, class_names=NAMES).to_part()
    assert part.contract.classes == ("ant", "cat")


@pytest.mark.parametrize("labels", [[0, 3], ["owl", "ant"], [0.5, 1.0]])
def test_labels_that_are_no_places_among_the_names_are_refused(estimator, labels):
    with pytest.raises(TaskError):
        estimator.fit([[0.0, 1.0], [1.0, 0.0]], labels, class_names=NAMES)
