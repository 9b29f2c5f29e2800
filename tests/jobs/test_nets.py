import pytest
import torch

from dovetail.core.errors import RecipeError, TaskError
from dovetail.jobs.frame import Frame, net_for
from dovetail.parts.part import build
from dovetail.shelf.names import name_of
from dovetail.shelf.store import Shelf
from dovetail.tasks.task import Task


def images(*shape, classes=3):
    return Task(torch.rand(classes * 4, *shape), list(range(classes)) * 4)


@pytest.mark.parametrize("net", ["mlp", "lenet5", "resnet8"])
@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 3), ((3, 12, 12), 5)])
def test_a_network_takes_and_gives_what_the_task_says(net, shape, classes):
    part = net_for(images(*shape, classes=classes), net)
    assert part.contract.takes[0].shape == shape
    assert part.contract.gives[0].shape == (classes,)


def test_arguments_go_over_what_the_task_says():
    task = images(1, 8, 8)
    assert net_for(task, "mlp", {"classes": 7}).contract.gives[0].shape == (7,)
    assert net_for(task, "mlp", {"hidden": [5]}).module.hidden1.linear.out_features == 5
    assert net_for(images(1, 8, 9), "lenet5", {"size": 8}).contract.takes[0].shape == (1, 8, 8)


def test_the_seed_draws_the_weights():
    task = images(1, 8, 8)
    assert net_for(task, "mlp", seed=1).digest == net_for(task, "mlp", seed=1).digest
    assert net_for(task, "mlp", seed=1).digest != net_for(task, "mlp", seed=2).digest


def test_regression_and_vectors():
    task = Task(torch.rand(20, 6), torch.rand(20, 2), kind="regression")
    part = net_for(task, "mlp")
    assert (part.contract.takes[0].shape, part.contract.gives[0].shape) == ((6,), (2,))
    with pytest.raises(TaskError, match="'lenet5' takes images, 'task' has vectors; use 'mlp'"):
        net_for(task, "lenet5")


def test_what_does_not_fit_is_refused():
    with pytest.raises(TaskError, match="takes square images, 'task' has 8×9"):
        net_for(images(1, 8, 9), "lenet5")
    with pytest.raises(RecipeError, match="unknown builder 'lenet55'"):
        net_for(images(1, 8, 8), "lenet55")
    with pytest.raises(RecipeError, match="no argument 'depth'"):
        net_for(images(1, 8, 8), "mlp", {"depth": 3})


def test_a_part_is_found_in_a_folder_and_on_the_shelf(tmp_path):
    first, second = (build("mlp", hidden=(4,), seed=seed) for seed in (1, 2))
    shelf = Shelf(tmp_path / "shelf")
    shelf.add(first, "net")
    shelf.add(second, "net")
    first.save_pretrained(tmp_path / "made" / "net")
    assert Frame(shelf.folder).part("net").digest == second.digest
    assert Frame(shelf.folder).part("net@1").digest == first.digest
    assert Frame("nowhere").part(str(tmp_path / "made" / "net")).digest == first.digest


@pytest.mark.parametrize(
    ("typed", "name"),
    [("lenet", "lenet"), ("lenet@2", "lenet"), ("a/b/lenet", "lenet"), ("./lenet/", "lenet")],
)
def test_the_name_in_what_was_typed(typed, name):
    assert name_of(typed) == name
