"""The cheapest chain between two contracts by trying every simple one."""

from __future__ import annotations

import math


def every_chain(start, end, parts):
    """All chains of different parts, each ``(name, contract, quality)``, that fit end to end."""
    found = []

    def go(last, chain):
        if not last.mismatches(end):
            found.append(chain)
        for part in parts:
            if part not in chain and not last.mismatches(part[1]):
                go(part[1], [*chain, part])

    go(start, [])
    return found


def cheapest(start, end, parts):
    """The names, and the cost; the shorter of equals, then the first by name."""
    chains = every_chain(start, end, parts)
    if not chains:
        return None

    def key(chain):
        cost = 0.0
        for _, _, quality in chain:
            cost += -math.log(min(1.0, max(0.01, quality)))
        return round(cost, 9), len(chain), [name for name, _, _ in chain]

    best = min(chains, key=key)
    return key(best)[2], key(best)[0]
