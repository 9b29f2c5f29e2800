"""Averaging with quantisation and error feedback, one number at a time, in float64."""

from __future__ import annotations

from references.packing import levels_of, quantised


def slow_average(states, residuals, since, levels):
    """Mean and new residuals of flat lists of numbers, one list a worker, sent as differences."""
    told, lost = [], []
    for weights, residual in zip(states, residuals, strict=True):
        wanted = [w - s + e for w, s, e in zip(weights, since, residual, strict=True)]
        low, high = min(wanted), max(wanted)
        symbols, _ = quantised(wanted, low, high, levels)
        read = [levels_of(low, high, levels)[symbol] for symbol in symbols]
        told.append(read)
        lost.append([v - r for v, r in zip(wanted, read, strict=True)])
    moved = [sum(column) / len(column) for column in zip(*told, strict=True)]
    return [s + d for s, d in zip(since, moved, strict=True)], lost
