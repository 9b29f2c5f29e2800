"""Compatible training one image, one rotation and one weight at a time, in float64.

Written from the two objectives of the source: an image adds the loss of its own head; that of the
shared head for common classes if it is of one; and the mean loss of the shared pretext head over
all its views.  A step is on the mean over a batch, and changes only what the batch went through.
"""

import copy
import itertools
import math

import torch
from references.pretexts import rearranged, turned


def cross_entropy(scores, answer):
    """Of one image: the negative logarithm of the softmax, term by term."""
    total = sum(torch.exp(score) for score in scores)
    return -torch.log(torch.exp(scores[answer]) / total)


def rotations(image, _number):
    """The four views of an image, each with its answer."""
    return [(turned(image, turns), turns) for turns in range(4)]


def jigsaws(orders, drawn):
    """The one view of the image with that number: patches in the order that was drawn for it."""

    def views(image, number):
        order = [int(letter) for letter in orders[drawn[number]]]
        return [(rearranged(image, 2, order), drawn[number])]

    return views


def losses(network, shared, images, names, *, weights=None, views=rotations, taught=None):
    """Each loss of a batch, by name.

    ``network`` has a ``front``, a ``head`` and the names of its ``classes``; ``shared`` may have a
    ``dcc`` head, the names it tells apart in ``common``, and an ``rp`` head.  Only the first
    ``taught`` images of each common class teach the ``dcc`` head; all unless said.
    """
    weights = {"dcc": 1.0, "rp": 1.0} | (weights or {})
    found = {name: torch.zeros((), dtype=torch.float64) for name in ("own", *_heads(shared))}
    for number, (image, name) in enumerate(zip(images.double(), names, strict=True)):
        features = network["front"](image[None])
        own = cross_entropy(network["head"](features)[0], network["classes"].index(name))
        found["own"] = found["own"] + own / len(images)
        earlier = list(names[:number]).count(name)
        if "dcc" in shared and name in shared["common"] and (taught is None or earlier < taught):
            scores = shared["dcc"](features)[0]
            loss = cross_entropy(scores, shared["common"].index(name))
            found["dcc"] = found["dcc"] + weights["dcc"] * loss / len(images)
        if "rp" in shared:
            made = views(image, number)
            for view, answer in made:
                loss = cross_entropy(shared["rp"](network["front"](view[None]))[0], answer)
                found["rp"] = found["rp"] + weights["rp"] * loss / len(made) / len(images)
    return found


def _heads(shared):
    return [name for name in ("dcc", "rp") if name in shared]


def touched(network, shared):
    """The weights that a batch of the network goes through."""
    modules = [network["front"], network["head"], *(shared[name] for name in _heads(shared))]
    return [weight for module in modules for weight in module.parameters()]


def plain_sum(found, weights):
    """The gradient of the sum of the losses."""
    return torch.autograd.grad(sum(found.values()), weights)


def flat_gradients(found, weights):
    """For each loss its gradient by all weights, as one long row."""
    rows = []
    for loss in found.values():
        gradient = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    torch.zeros(w.numel(), dtype=torch.float64) if g is None else g.flatten()
                    for g, w in zip(gradient, weights, strict=True)
                ]
            )
        )
    return rows


def freed_sums(rows):
    """Sums of gradients without conflicts, one for each order in which conflicts can be met."""
    others = [[j for j in range(len(rows)) if j != i] for i in range(len(rows))]
    for orders in itertools.product(*(itertools.permutations(each) for each in others)):
        total = torch.zeros_like(rows[0])
        for i, order in enumerate(orders):
            row = rows[i].clone()
            for j in order:
                along = float(row @ rows[j])
                if along < 0:
                    row = row - along / float(rows[j] @ rows[j]) * rows[j]
            total = total + row
        yield total


def without_conflicts(found, weights):
    """The gradient of two losses without what is opposed in them: their order does not matter."""
    first, *more = freed_sums(flat_gradients(found, weights))
    assert not more
    return cut_up(first, weights)


def cut_up(row, weights):
    """A long row as tensors of the weights' shapes."""
    pieces = torch.split(row, [weight.numel() for weight in weights])
    return [piece.reshape(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]


def train(
    networks, shared, batches, *, lr, momentum=0.0, decay=0.0, gradient=plain_sum, turns=2, **more
):
    """Steps in turn, in place: network ``k`` on its batch ``(images, names)``, over and over.

    Nesterov's momentum; what a batch did not go through is left alone, momentum and decay too.
    """
    speed = {}
    for turn in range(turns):
        place = turn % len(networks)
        found = losses(networks[place], shared, *batches[place], **more)
        weights = touched(networks[place], shared)
        for weight, slope in zip(weights, gradient(found, weights), strict=True):
            pull = slope + decay * weight.detach()
            speed[weight] = momentum * speed[weight] + pull if weight in speed else pull
            with torch.no_grad():
                weight -= lr * (pull + momentum * speed[weight])
    return found


def in_double(module):
    """A copy to train slowly."""
    return copy.deepcopy(module).double().requires_grad_(True)


def surely(probability):
    """The loss of an answer given with that probability; to check the reference itself."""
    return -math.log(probability)
