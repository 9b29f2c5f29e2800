"""Training a front through a frozen head, read aloud: one example and one rotation at a time."""

from __future__ import annotations

import torch


def turned(image, quarter):
    """An image ``[c, h, h]`` turned anticlockwise: transposed, then upside down, so many times."""
    for _ in range(quarter):
        image = image.transpose(1, 2).flip(1)
    return image


def minus_log_probability(scores, answer):
    """Cross-entropy of one example."""
    exponentials = (scores - scores.max()).exp()
    return -(exponentials[answer] / exponentials.sum()).log()


def rotation_loss(front, head, images):
    """The mean over images and the four rotations of each."""
    terms = []
    for image in images:
        for quarter in range(4):
            scores = head(front(turned(image, quarter)[None]))[0]
            terms.append(minus_log_probability(scores, quarter))
    return sum(terms) / len(terms)


def hidden_with_stored(state, features, eps=1e-5):
    """A hidden layer of an mlp, its norm with the statistics that it stores."""
    linear = features @ state["linear.weight"].T + state["linear.bias"]
    scaled = (linear - state["norm.running_mean"]) / (state["norm.running_var"] + eps).sqrt()
    return (scaled * state["norm.weight"] + state["norm.bias"]).relu()


def hidden_with_batch(state, features, eps=1e-5):
    """The same with the statistics of the rows ``[n, d]`` at hand."""
    linear = features @ state["linear.weight"].T + state["linear.bias"]
    spread = (linear - linear.mean(0)).square().mean(0)
    scaled = (linear - linear.mean(0)) / (spread + eps).sqrt()
    return (scaled * state["norm.weight"] + state["norm.bias"]).relu()


def stepped(front, loss, lr):
    """The weights after one step of plain gradient descent."""
    names, weights = zip(*front.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, weights)
    moved = (w.detach() - lr * g for w, g in zip(weights, gradients, strict=True))
    return dict(zip(names, moved, strict=True))
