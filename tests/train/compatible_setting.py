"""Two small tasks and networks that are to fit each other, for the tests of compatible training."""

import torch

from dovetail.parts.part import build
from dovetail.tasks.task import Task


def shapes(name, classes=("bar", "dot", "ell"), *, seed=0, count=72, size=8, sign=1.0):
    """Images of a bar, a dot or an angle, in noise; a class that has another name is a dot too."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % len(classes)
    inputs = 0.4 * torch.rand(count, 1, size, size, generator=draw)
    for image, target in zip(inputs, targets.tolist(), strict=True):
        if classes[target] in ("bar", "ell"):
            image[0, 1 : size - 1, 2] += 0.5
        if classes[target] == "ell":
            image[0, size - 2, 2 : size - 1] += 0.5
        if classes[target] not in ("bar", "ell"):
            image[0, 2:4, size - 3 : size - 1] += 0.5
    return Task(0.5 + sign * (inputs - 0.5), targets, classes=classes, name=name)


def pair_of_tasks():
    """Bars and angles in common, in another order, and a class that each has to itself."""
    first = shapes("light", seed=1)
    second = shapes("dark", ("ell", "box", "bar"), seed=2, count=60, sign=-1.0)
    return first, second


def lenet(seed, **more):
    return build("lenet5", seed=seed, **({"size": 8, "classes": 3, "norm": "batch"} | more))


def bytes_of(*parts):
    """Every tensor of every part, copied."""
    return [
        {name: tensor.clone() for name, tensor in part.module.state_dict().items()}
        for part in parts
    ]


def assert_same_bytes(mine, theirs):
    for one, other in zip(mine, theirs, strict=True):
        assert one.keys() == other.keys()
        for name, tensor in one.items():
            assert torch.equal(tensor, other[name]), name


def all_bytes(fit):
    return bytes_of(*fit.networks, *fit.fronts, *fit.heads, *fit.auxiliaries.values())


def rows_of(fit):
    return [
        {name: value for name, value in row.items() if name != "seconds"}
        for stage in fit.record.stages
        for row in stage.rows
    ]
