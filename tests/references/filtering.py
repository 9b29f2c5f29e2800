"""What a filter keeps, row by row, from the definition."""

from __future__ import annotations


def kept(rows, labels, k, cap, least):
    """Which rows k-filtering keeps, as a list of bools."""
    n = len(rows)

    def apart(i, j):
        return sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True))

    depth = []
    for i in range(n):
        others = [apart(i, j) for j in range(n) if labels[j] != labels[i]]
        border = min(others, default=float("inf"))
        inside = sum(
            1 for j in range(n) if j != i and labels[j] == labels[i] and apart(i, j) < border
        )
        depth.append((inside, border))
    redundant = [i for i in range(n) if n > k and depth[i][0] >= k]
    redundant.sort(key=lambda i: (-depth[i][0], -depth[i][1], i))
    return _without(redundant, labels, n, cap, least)


def kept_by_loss(losses, labels, share, cap, least):
    """Which rows loss filtering keeps."""
    n = len(losses)
    lowest = sorted(range(n), key=lambda i: (losses[i], i))[: int(share * n)]
    return _without(lowest, labels, n, cap, least)


def _without(first_to_go, labels, n, cap, least):
    going = first_to_go[: max(0, min(int(cap * n), n - least))]
    for label in sorted(set(labels)):
        if all(i in going for i in range(n) if labels[i] == label):
            going.remove([i for i in going if labels[i] == label][-1])
    return [i not in going for i in range(n)]
