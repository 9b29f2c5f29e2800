"""Averaging with quantisation and error feedback, one number at a time, in float64."""

from __future__ import annotations

import math


def slow_average(states, residuals, bits):
    """Mean and new residuals of flat lists of numbers, one list a worker, ``2 ** bits`` bins."""
    told, lost = [], []
    for weights, residual in zip(states, residuals, strict=True):
        wanted = [w + e for w, e in zip(weights, residual, strict=True)]
        low, high = min(wanted), max(wanted)
        width = (high - low) / 2**bits
        read = []
        for value in wanted:
            place = min(math.floor((value - low) / width), 2**bits - 1)
            read.append(low + (place + 0.5) * width)
        told.append(read)
        lost.append([v - r for v, r in zip(wanted, read, strict=True)])
    mean = [sum(column) / len(column) for column in zip(*told, strict=True)]
    return mean, lost
