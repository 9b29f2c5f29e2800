"""Pretexts pixel by pixel and pair by pair, as one would explain them."""

import math

import torch


def turned(image, turns):
    """One image ``[c, h, h]``, a quarter turn anticlockwise at a time."""
    for _ in range(turns):
        side = image.shape[1]
        new = torch.empty_like(image)
        for row in range(side):
            for column in range(side):
                # what was at the right edge comes to the top
                new[:, row, column] = image[:, column, side - 1 - row]
        image = new
    return image


def rearranged(image, grid, order):
    """One image ``[c, h, w]`` whose place ``i`` shows the patch ``order[i]``."""
    tall, wide = image.shape[1] // grid, image.shape[2] // grid
    top, left = (image.shape[1] % grid) // 2, (image.shape[2] % grid) // 2
    new = image.clone()
    for place, patch in enumerate(order):
        for row in range(tall):
            for column in range(wide):
                new[
                    :,
                    top + (place // grid) * tall + row,
                    left + (place % grid) * wide + column,
                ] = image[
                    :,
                    top + (patch // grid) * tall + row,
                    left + (patch % grid) * wide + column,
                ]
    return new


def cosine(a, b):
    dot = sum(float(x) * float(y) for x, y in zip(a, b, strict=True))
    lengths = [math.sqrt(sum(float(x) ** 2 for x in row)) for row in (a, b)]
    return dot / (lengths[0] * lengths[1])


def contrast(rows, targets, temperature):
    """The mean over views of minus the log of the other view's share among all others."""
    terms = []
    for i in range(len(rows)):
        weights = {
            j: math.exp(cosine(rows[i], rows[j]) / temperature) for j in range(len(rows)) if j != i
        }
        (other,) = [j for j in weights if targets[j] == targets[i]]
        terms.append(-math.log(weights[other] / sum(weights.values())))
    return sum(terms) / len(terms)


def nearest_is_right(rows, targets):
    """How often the nearest other view is of the same image."""
    right = 0
    for i in range(len(rows)):
        likeness = {j: cosine(rows[i], rows[j]) for j in range(len(rows)) if j != i}
        right += bool(targets[max(likeness, key=likeness.get)] == targets[i])
    return right / len(rows)


def without_conflicts(vectors, orders):
    """The sum of vectors, each freed in turn (``orders[i]``) of what is against another."""
    freed = []
    for i, vector in enumerate(vectors):
        vector = [float(x) for x in vector]
        for j in orders[i]:
            if j == i:
                continue
            other = [float(x) for x in vectors[j]]
            dot = sum(a * b for a, b in zip(vector, other, strict=True))
            if dot < 0:
                share = dot / sum(b * b for b in other)
                vector = [a - share * b for a, b in zip(vector, other, strict=True)]
        freed.append(vector)
    return [sum(column) for column in zip(*freed, strict=True)]
