"""The baseline scores read aloud: loops over examples, pairs and classes, nothing clever."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np


def leep_by_hand(probs, labels):
    """Every example: the chance of its label, through every source class."""
    n, sources = len(labels), len(probs[0])
    total = 0.0
    for i in range(n):
        chance = 0.0
        for z in range(sources):
            mass = sum(probs[j][z] for j in range(n))
            if mass == 0:
                continue
            of_label = sum(probs[j][z] for j in range(n) if labels[j] == labels[i])
            chance += of_label / mass * probs[i][z]
        total += math.log(chance)
    return total / n


def nce_by_hand(probs, labels):
    """Minus the entropy of labels among the examples of each decision."""
    decisions = [int(np.argmax(row)) for row in probs]
    total = 0.0
    for z in set(decisions):
        members = [y for y, other in zip(labels, decisions, strict=True) if other == z]
        for y in set(members):
            share = members.count(y) / len(members)
            total += len(members) / len(labels) * share * math.log(share)
    return total


def rate_by_hand(rows, eps):
    """Half the log of the product of 1 + s² / (m eps) over singular values."""
    values = np.linalg.svd(np.asarray(rows), compute_uv=False)
    return 0.5 * sum(math.log1p(s * s / (len(rows) * eps)) for s in values)


def transrate_by_hand(features, labels, *, scaled, eps=1e-4):
    """The rate of all, less the mean (or weighted mean) rate of classes."""
    z = np.asarray(features) - np.mean(features, axis=0)
    if scaled:
        z = z / math.sqrt(float((z**2).sum()))
    names = sorted(set(labels))
    total = rate_by_hand(z, eps)
    for name in names:
        members = [row for row, label in zip(z, labels, strict=True) if label == name]
        weight = len(members) / len(z) if scaled else 1 / len(names)
        total -= weight * rate_by_hand(members, eps)
    return total


def average_ranks(values):
    """The mean place of each value among all, counted one by one; 1e-9 apart is a tie."""
    ranks = []
    for value in values:
        below = sum(other < value - 1e-9 for other in values)
        equal = sum(abs(other - value) <= 1e-9 for other in values)
        ranks.append(below + (equal + 1) / 2)
    return ranks


def parc_by_hand(features, labels):
    """Pearson's correlation of the ranks of both distances, pair by pair."""
    x = np.asarray(features, dtype=float)
    columns = [c for c in range(x.shape[1]) if x[:, c].max() > x[:, c].min()]
    x = np.stack([(x[:, c] - x[:, c].mean()) / x[:, c].std() for c in columns], axis=1)
    far, different = [], []
    for i in range(len(x)):
        for j in range(i + 1, len(x)):
            a, b = x[i] - x[i].mean(), x[j] - x[j].mean()
            lengths = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
            far.append(1.0 if lengths < 1e-9 else 1 - float(a @ b) / lengths)
            different.append(float(labels[i] != labels[j]))
    a, b = np.array(average_ranks(far)), np.array(average_ranks(different))
    a, b = a - a.mean(), b - b.mean()
    if not a.any():
        return 0.0
    return 100 * float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def knn_by_hand(features, labels, k):
    """Each row in turn: sort the others by distance, share out k votes, judge the winner."""
    credit = Fraction(0)
    k = min(k, len(labels) - 1)
    for i, row in enumerate(features):
        others = sorted(
            (sum((a - b) ** 2 for a, b in zip(row, other, strict=True)), labels[j])
            for j, other in enumerate(features)
            if j != i
        )
        reach = others[k - 1][0]
        inside = [name for far, name in others if far < reach]
        edge = [name for far, name in others if far == reach]
        votes, nearest = {}, {}
        for far, name in others:
            if far <= reach:
                one = Fraction(1) if far < reach else Fraction(k - len(inside), len(edge))
                votes[name] = votes.get(name, Fraction(0)) + one
                nearest.setdefault(name, far)
        most = max(votes.values())
        best = [name for name, count in votes.items() if count == most]
        least = min(nearest[name] for name in best)
        best = [name for name in best if nearest[name] == least]
        credit += Fraction(labels[i] in best, len(best))
    return float(credit / len(labels))


def kernel_pairs(features, labels):
    """exp k of the ordered pairs of one class and of two."""
    unit = []
    for row in np.asarray(features, dtype=float):
        length = math.sqrt(float(row @ row))
        unit.append(row / length if length else row)
    alike, apart = [], []
    for i, a in enumerate(unit):
        for j, b in enumerate(unit):
            if i != j:
                (alike if labels[i] == labels[j] else apart).append(math.exp(float(a @ b)))
    return alike, apart


def cts_by_hand(features, labels):
    """The share of pairs of one class in the sum of exp k."""
    alike, apart = kernel_pairs(features, labels)
    return sum(alike) / (sum(alike) + sum(apart))


def cts_neo_by_hand(features, labels):
    """Minus the mean exp k over pairs of two classes."""
    _, apart = kernel_pairs(features, labels)
    return -sum(apart) / len(apart)
