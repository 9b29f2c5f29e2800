"""Do parts fit perfectly when both networks learn the same task?  (Figure 7 of the source.)

Both networks are trained on MNIST, from different seeds, with every combination of the three ways.
The claim of the source, fixed beforehand: any two or three ways together recombine within 1.1
points of the bound (each network alone, with a rotation head of its own).  Needs ``make data``.
"""

from __future__ import annotations

from compatibility.methods import BOUND, METHODS, both, row_of, runs_of
from compatibility.protocol import arguments, mean

from dovetail.core.evidence import Evidence, environment

PAIR = "mnist, itself"
CLOSE = 0.011


def main() -> None:
    args, place = arguments(__doc__, "fit_controlled")
    rows = [row_of(PAIR, method, runs_of(PAIR, method, place)) for method in METHODS]
    alone = runs_of(PAIR, BOUND, place)
    bound = mean(both(alone, "own, batch"))
    rows.append(row_of(PAIR, BOUND, alone))
    several = [row for row in rows if "+" in str(row["trained"])]
    Evidence(
        claim="on one task, any two ways together recombine within 1.1 points of the bound",
        holds=all(float(str(row["recombined"])) >= bound - CLOSE for row in several),
        rows=tuple(rows),
        command=f"python reproduce/fit_controlled.py --threads {args.threads}",
        settings=environment(threads=args.threads, scale=args.scale),
    ).save(args.output)


if __name__ == "__main__":
    main()
