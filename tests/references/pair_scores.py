"""The scores from sums as they are defined: every pair visited, every matrix written out."""

from __future__ import annotations

import math

import numpy as np

RANGES = {"relu": (0.0, 1.0), "tanh": (-1.0, 1.0)}


def unit(features):
    features = np.asarray(features, dtype=np.float64)
    lengths = np.sqrt((features**2).sum(1, keepdims=True))
    return features / np.where(lengths > 0, lengths, 1.0)


def kernel_score(kind, features, labels, activation):
    """Equations 15 to 22 read aloud: visit every ordered pair, keep the ones that count."""
    rows, (beta, alpha) = unit(features), RANGES[activation]
    form, _, neo = kind.partition("-")
    kernel, labels = (rows @ rows.T).tolist(), list(labels)
    terms = []
    for i in range(len(rows)):
        for j in range(len(rows)):
            same = labels[i] == labels[j]
            if (neo and same) or (form in ("utal", "cts") and i == j):
                continue
            terms.append((kernel[i][j], alpha if same else beta, same))
    return _value(form, bool(neo), terms)


def pair_score(kind, features, pairs, activation):
    """The same over labelled pairs ``(i, j, same)``, in both directions, and the diagonal."""
    rows, (beta, alpha) = unit(features), RANGES[activation]
    form, _, neo = kind.partition("-")
    terms = []
    for i, j, same in pairs:
        if not (neo and same):
            terms += 2 * [(float(rows[i] @ rows[j]), alpha if same else beta, bool(same))]
    if form in ("al", "nmse") and not neo:
        terms += [(float(row @ row), alpha, True) for row in rows]
    return _value(form, bool(neo), terms)


def _value(form, neo, terms):
    k, ideal, same = map(np.array, zip(*terms, strict=True))
    if form == "nmse":
        return -math.fsum((k - ideal) ** 2) / len(k)
    if form == "cts":
        total = math.fsum(np.exp(k))
        return -total / len(k) if neo else math.fsum(np.exp(k[same])) / total
    size = math.sqrt(math.fsum(k**2) * math.fsum(ideal**2))
    return math.fsum(k * ideal) / size


def one_hot(labels):
    names = sorted(set(np.asarray(labels).tolist()))
    return np.array([[float(label == name) for name in names] for label in labels])


def centred_alignment(features, targets):
    """Both kernels centred by the n x n matrix H, and their cosine."""
    features, targets = np.asarray(features, dtype=np.float64), np.asarray(targets)
    centre = np.eye(len(features)) - 1 / len(features)
    one = centre @ (features @ features.T) @ centre
    two = centre @ (targets @ targets.T) @ centre
    return float((one * two).sum() / math.sqrt((one**2).sum() * (two**2).sum()))


def logme(features, targets):
    """The greatest log density of N(0, I/b + FF'/a) at each target, a row: the mean of them.

    Where features fit a target without noise it grows without bound, or to a limit; the noise is
    taken to be at least 1e-12 of the target.
    """
    features = np.asarray(features, dtype=np.float64)
    n, scale = len(features), np.linalg.norm(features, 2) ** 2
    values, vectors = np.linalg.eigh(features @ features.T)
    values = np.where(values > 1e-12 * scale, values, 0.0)  # the rest is rounding
    found = []
    for target in targets.T:
        along = (vectors.T @ target) ** 2

        def negative(theta, along=along):
            # Covariance (I + FF'/l) / b, with the best b for this l.
            spread = 1 + values / math.exp(theta)
            b = n / max((along / spread).sum(), 1e-12 * along.sum())
            return -(n * math.log(b / (2 * math.pi)) - n - np.log(spread).sum()) / (2 * n)

        grid = np.linspace(math.log(scale) - 60, math.log(scale) + 30, 361)
        best = grid[int(np.argmin([negative(theta) for theta in grid]))]
        low, high = best - 0.25, best + 0.25
        while high - low > 1e-13 * abs(best):  # thirds: the maximum may be a corner
            one, two = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, two) if negative(one) < negative(two) else (one, high)
        null = -(1 + math.log(2 * math.pi * float(target @ target) / n)) / 2
        found.append(max(-negative(best), -negative(low), null))
    return float(np.mean(found))


def _covariances(features, labels):
    features, labels = np.asarray(features, dtype=np.float64), np.asarray(labels)
    means = np.stack([features[labels == label].mean(0) for label in labels])
    centred, between = features - features.mean(0), means - features.mean(0)
    return centred, centred.T @ centred / len(features), between.T @ between / len(features)


def hscore(features, labels):
    _, total, between = _covariances(features, labels)
    return float(np.trace(np.linalg.pinv(total, rcond=1e-11, hermitian=True) @ between))


def hscore_lw(features, labels):
    centred, total, between = _covariances(features, labels)
    n, d = centred.shape
    middle = np.trace(total) / d
    apart = ((total - middle * np.eye(d)) ** 2).sum() / d
    noise = sum(((np.outer(row, row) - total) ** 2).sum() for row in centred) / (n * n * d)
    shrink = min(noise, apart) / apart
    shrunk = (1 - shrink) * total + shrink * middle * np.eye(d)
    return float((1 - shrink) * np.trace(np.linalg.solve(shrunk, between)))


def gbc(features, labels, spherical):
    features, labels = np.asarray(features, dtype=np.float64), np.asarray(labels)
    gaussians = []
    for name in np.unique(labels):
        rows = features[labels == name]
        variance = rows.var(0)
        if spherical:
            variance = np.full_like(variance, variance.mean())
        gaussians.append((rows.mean(0), np.maximum(variance, 1e-4)))
    total = 0.0
    for i, (mean, variance) in enumerate(gaussians):
        for j, (other, their) in enumerate(gaussians):
            if i != j:
                middle = (variance + their) / 2
                distance = ((mean - other) ** 2 / middle).sum() / 8
                distance += 0.5 * np.log(middle).sum()
                distance -= 0.25 * (np.log(variance).sum() + np.log(their).sum())
                total -= math.exp(-distance)
    return total


def reference(kind, features, labels, activation):
    """Any score of rows with labels, by name."""
    if kind in ("centred-al", "cka"):
        return centred_alignment(features, one_hot(labels))
    if kind == "centred-al-unit":
        return centred_alignment(unit(features), one_hot(labels))
    if kind == "logme":
        return logme(features, one_hot(labels))
    if kind == "hscore":
        return hscore(features, labels)
    if kind == "hscore-lw":
        return hscore_lw(features, labels)
    if kind in ("gbc", "gbc-spherical"):
        return gbc(features, labels, kind != "gbc")
    return kernel_score(kind, features, labels, activation)
