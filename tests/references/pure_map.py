"""The pure Voronoi map one example and one centroid at a time, and the entropy of its cells."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch

from dovetail.core.seeds import generator


def far(a, b):
    return float(((a - b) ** 2).sum())


def nearest(example, centroids, among):
    return min(among, key=lambda c: (far(example, centroids[c]), c))


def bits(counts):
    total = sum(counts)
    return -sum(c / total * math.log2(c / total) for c in counts if c)


def pure_map_by_hand(rows, labels, seed=0):
    """Centroids, their labels and the cell of every example."""
    rows = np.asarray(rows, dtype=np.float64)
    names = sorted(set(labels))
    centroids = [
        np.mean([r for r, y in zip(rows, labels, strict=True) if y == n], 0) for n in names
    ]
    owners = list(names)
    fewest = len(rows) + 1
    while True:
        wrong = {}
        for i, (row, y) in enumerate(zip(rows, labels, strict=True)):
            home = nearest(row, centroids, [c for c, o in enumerate(owners) if o == y])
            others = [c for c, o in enumerate(owners) if o != y]
            if others:
                cell = nearest(row, centroids, others)
                if far(row, centroids[home]) > far(row, centroids[cell]):
                    wrong.setdefault((cell, y), []).append(i)
        if not wrong:
            break
        count = sum(map(len, wrong.values()))
        for (_, y), group in sorted(wrong.items()):
            middle = rows[group].mean(0)
            if count >= fewest:
                middle = rows[min(group, key=lambda i: (far(rows[i], middle), i))]
            centroids.append(middle)
            owners.append(y)
        fewest = min(fewest, count)
    return fewer(rows, labels, centroids, owners, seed)


def fewer(rows, labels, centroids, owners, seed):
    """Without cells whose examples would fall to cells of their class, the smallest first."""
    draw = torch.rand(len(owners), generator=generator(seed, "pure entropy")).tolist()
    alive = set(range(len(owners)))
    home = [
        nearest(row, centroids, [c for c in alive if owners[c] == y])
        for row, y in zip(rows, labels, strict=True)
    ]
    alive &= set(home)
    while True:
        before = len(alive)
        sizes = Counter(home)
        for c in sorted(alive, key=lambda c: (sizes[c], draw[c])):
            members = [i for i, h in enumerate(home) if h == c]
            rest = alive - {c}
            moved = {}
            for i in members:
                own = [r for r in rest if owners[r] == labels[i]]
                other = [r for r in rest if owners[r] != labels[i]]
                if not own:
                    break
                best = nearest(rows[i], centroids, own)
                if other and far(rows[i], centroids[best]) > far(
                    rows[i], centroids[nearest(rows[i], centroids, other)]
                ):
                    break
                moved[i] = best
            else:
                alive = rest
                for i, where in moved.items():
                    home[i] = where
        if len(alive) == before:
            return centroids, owners, home


def pure_entropy_by_hand(rows, labels, seed=0):
    return bits(Counter(pure_map_by_hand(rows, labels, seed)[2]).values())


def selection_entropy_by_hand(rows, labels):
    """Of every feature: the classes of the examples where it is positive."""
    found = []
    for column in np.asarray(rows).T:
        chosen = [y for z, y in zip(column, labels, strict=True) if z > 0]
        found.append(bits(Counter(chosen).values()) if chosen else math.nan)
    return found
