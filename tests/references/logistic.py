"""Class probabilities and the penalised loss of a linear head, row by row."""

from __future__ import annotations

import math


def probabilities(logits):
    highest = max(logits)
    raised = [math.exp(each - highest) for each in logits]
    return [each / sum(raised) for each in raised]


def penalised_loss(x, codes, weights, intercept, penalty):
    total = penalty / 2 * sum(w * w for row in weights for w in row)
    for row, code in zip(x, codes, strict=True):
        logits = [
            intercept[c] + sum(row[j] * weights[j][c] for j in range(len(row)))
            for c in range(len(intercept))
        ]
        total -= math.log(probabilities(logits)[code])
    return total


def temperature_loss(outputs, codes, temperature):
    """Mean cross entropy; every row lends a share of one to a row that nothing is known of."""
    n, classes = len(outputs), len(outputs[0])
    total = 0.0
    for row, code in zip(outputs, codes, strict=True):
        p = probabilities([each / temperature for each in row])
        for c in range(classes):
            target = ((n if c == code else 0) + 1 / classes) / (n + 1)
            total -= target * math.log(p[c])
    return total / n
