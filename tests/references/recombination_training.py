"""Plain loops for training through shared or ready heads: no loop, no group, no caches."""

import torch
import torch.nn.functional as F


def descend(modules, loss, lr):
    weights = [w for module in modules for w in module.parameters()]
    gradients = torch.autograd.grad(loss, weights)
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= lr * gradient


def one_head_for_all(fronts, head, sources, epochs, lr):
    """A batch of each extractor in turn; the extractor and the head take a step."""
    for epoch in range(epochs):
        for turn in zip(*(list(source.epoch(epoch)) for source in sources), strict=True):
            for front, (inputs, targets) in zip(fronts, turn, strict=True):
                loss = F.cross_entropy(head(front(inputs)), targets)
                descend((front, head), loss, lr)


def fine_tuned(trained, whole, source, epochs, lr):
    """Steps on the modules ``trained`` for the loss of the whole."""
    for epoch in range(epochs):
        for inputs, targets in source.epoch(epoch):
            descend(trained, F.cross_entropy(whole(inputs), targets), lr)


def right_by_class(outputs, targets, known, classes):
    """For each class of the task how many images there are and how many the head names."""
    counts = {name: [0, 0] for name in classes}
    for row, target in zip(outputs.tolist(), targets.tolist(), strict=True):
        said = known[row.index(max(row))]
        counts[classes[target]][0] += 1
        counts[classes[target]][1] += said == classes[target]
    return counts
