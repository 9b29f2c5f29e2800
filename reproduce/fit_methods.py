"""Which ways of training make parts that fit?  (Figures 2, 6 and 10 of the source.)

Two networks, one for each task of a pair, are trained with every combination of the three ways:
a shared head for the common classes (dcc), a shared head for rotations (rp), identical initial
weights (iiw).  Recombination accuracy is the front of one with the head of the other, on the test
images of the front's task, with batch statistics, with no fine-tuning; the mean of both directions.
The bound trains each network alone with a rotation head of its own.

The claims, fixed before any run: independent networks recombine near chance (at most 10 points
above); dcc and rp alone are at least 10 points better than independent, iiw better; all three
together are the best up to 2 points; incremental training loses at most 10 points on joint; and own
accuracy after joint training by all three is within 0.5 points of networks trained alone with both
auxiliary heads of their own.  The last is judged on the mean over pairs, seeds and both networks.

Needs ``make data``.
"""

from __future__ import annotations

from compatibility.methods import ALL, BOUND, INCREMENTAL, METHODS, OWN_HEADS, row_of, runs_of
from compatibility.pairs import PAIRS
from compatibility.protocol import arguments, mean

from dovetail.core.evidence import Evidence, environment


def verdicts(rows: list[dict[str, object]]) -> dict[str, bool]:
    """Each claim, judged on the means over the pairs."""
    named: dict[str, list[dict[str, object]]] = {}
    for row in rows:
        named.setdefault(str(row["trained"]), []).append(row)

    def over(method: str, column: str) -> float:
        return mean([float(str(row[column])) for row in named[method]])

    recombined = {method: over(method, "recombined") for method in METHODS}
    independent = recombined["independent"]
    return {
        "independent near chance": independent <= 0.1 + 0.1,
        "dcc better": recombined["dcc"] >= independent + 0.1,
        "rp better": recombined["rp"] >= independent + 0.1,
        "iiw better": recombined["iiw"] > independent,
        "all three best": recombined[ALL] >= max(recombined.values()) - 0.02,
        "incremental near joint": over(INCREMENTAL, "recombined") >= recombined[ALL] - 0.1,
        "own accuracy kept": over(ALL, "own") >= over(OWN_HEADS, "own") - 0.005,
    }


def main() -> None:
    args, place = arguments(__doc__, "fit_methods")
    rows = []
    for pair in args.pairs or PAIRS:
        for method in (*METHODS, INCREMENTAL, BOUND, OWN_HEADS):
            rows.append(row_of(pair, method, runs_of(pair, method, place)))
    if args.pairs:
        return
    judged = verdicts(rows)
    print(judged)
    Evidence(
        claim="networks trained through shared heads recombine, independent ones do not",
        holds=all(judged.values()),
        rows=tuple(rows),
        command=f"python reproduce/fit_methods.py --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            **{claim: "yes" if found else "no" for claim, found in judged.items()},
        ),
    ).save(args.output)


if __name__ == "__main__":
    main()
