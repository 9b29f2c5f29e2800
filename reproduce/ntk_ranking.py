"""Does the tangent kernel of a part say better how well *fine-tuning* it goes than its features do?

Fixed before any tangent score was computed:

**Parts and truths** are those of ``ranking_shelf/protocol.py``: ten targets of 500 labels, and for
each part the test accuracy of a head on frozen features and of the part fine-tuned.  Parts: the 27
small networks cut at the hidden layer (three of them random), on which the claim is made, since
they share one cut and one schedule; and with the three cut at the second convolution, 30.  The
EfficientNets are left out, for the cost of the gradients of each example.

**Scores**, all from the same 300 labelled examples, the same number of each class: ``ntk-loo`` and
``ntk-centred-al`` as ``dt.rank`` computes them (four mixtures of the features, seed 0); beside each
its twin on frozen features, ``ridge-loo`` and ``centred-al``, which differs in the kernel alone;
and ``expected-accuracy``, ``logme``, ``knn-3``, ``parc``, ``nleep``.  A variant counts the weights
of the fresh head too, as fine-tuning does: with weights of variance 1/(3d) its kernel is that of
the features plus a third of the tangent kernel ("ntk-loo, head too").

**Claim**: against the fine-tuned truth both tangent scores have a greater weighted tau than their
twins, the mean difference over targets positive with a 90 % interval (targets resampled) above
zero.  What the scores do against the frozen truth is reported and not part of the claim.

``--scale small`` is this; ``tiny`` looks at four parts, two targets and 40 examples; ``paper`` (a
name that all scripts have; the source has no such experiment) takes all 500 labels and 8 mixtures.
**Asked after the result**, hence no part of the claim: is it the noise of four mixtures?  ``--scale
mixtures`` takes the 13 parts of width 1 (cut at the hidden layer) and beside the scores above those
of the mean kernel of four draws, 16 mixtures; it writes ``ntk_ranking_mixtures.json``, whose claim
is the same, of the tangent scores with 16 mixtures.

Scores are kept beside the truths, so that a run goes on where it was stopped.  Needs the shelf:
``python reproduce/rank_parts.py`` first.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranking_shelf.features import Rows, labelled
from ranking_shelf.judging import Scores, Truths, truths
from ranking_shelf.keeping import Facts, kept_facts
from ranking_shelf.parts import Candidate, candidates, facts_of, front_of
from ranking_shelf.protocol import Workplace
from ranking_shelf.scoring import budgeted
from ranking_shelf.targets import TARGETS, target_task
from ranking_shelf.truths import can_be_tuned

from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import derived_seed
from dovetail.ranking.judge import judge
from dovetail.ranking.judgement import Judgement
from dovetail.ranking.ntk import ntk_score, tangent_kernel
from dovetail.ranking.scores import score

TWINS = {"ntk-loo": "ridge-loo", "ntk-centred-al": "centred-al"}
BESIDE = ("expected-accuracy", "logme", "knn-3", "parc", "nleep")
HEAD_TOO = ", head too"
MORE = ", 16 mixtures"
DRAWS = 4
CONFIDENCE = 0.9
RESAMPLES = 10_000


@dataclass(frozen=True)
class Scale:
    """How much is looked at."""

    examples: int
    outputs: int
    parts: int | None = None
    targets: int | None = None
    mixtures: bool = False


SCALES = {
    "tiny": Scale(40, 2, 4, 2),
    "small": Scale(300, 4),
    "mixtures": Scale(300, 4, mixtures=True),
    "paper": Scale(500, 8),
}


def scores_of(part: Candidate, target: str, place: Workplace, scale: Scale) -> Facts:
    """Every score of a part on a target, and the seconds that the kernel took."""

    def found() -> Facts:
        rows = labelled(part, target, place)
        chosen = budgeted(rows.labels, scale.examples)
        few = Rows(rows.features[chosen].double(), rows.labels[chosen])
        inputs, _ = target_task(target, place).subset("train")
        began = time.process_time()
        kernel = tangent_kernel(front_of(part, place), inputs[chosen], outputs=scale.outputs)
        seconds = time.process_time() - began
        whole = few.features @ few.features.T + kernel / 3
        activation = facts_of(part, place)["activation"]
        values = {name: ntk_score(kernel, few.labels, name) for name in TWINS}
        values |= {name + HEAD_TOO: ntk_score(whole, few.labels, name) for name in TWINS}
        for name in (*TWINS.values(), *BESIDE):
            values[name] = score(few.features, few.labels, by=name, activation=activation)
        return {"scores": values, "seconds": seconds}

    room = f"{scale.examples}-{scale.outputs}"
    return kept_facts(place.file("ntk", room, target, f"{part.name}.json"), found)


def with_more_mixtures(part: Candidate, target: str, place: Workplace, scale: Scale) -> Facts:
    """The tangent scores of the mean kernel of several draws, each of so many mixtures."""

    def found() -> Facts:
        inputs, labels = target_task(target, place).subset("train")
        chosen = budgeted(labels, scale.examples)
        front = front_of(part, place)
        draws = [
            tangent_kernel(front, inputs[chosen], outputs=scale.outputs, seed=seed)
            for seed in range(DRAWS)
        ]
        kernel = torch.stack(draws).mean(0)
        return {name + MORE: ntk_score(kernel, labels[chosen], name) for name in TWINS}

    room = f"{scale.examples}-{scale.outputs}x{DRAWS}"
    return kept_facts(place.file("ntk", room, target, f"{part.name}.json"), found)


def judged(scores: Scores, truth: Truths, which: str, parts: set[str]) -> Judgement:
    """The scores against a truth, over some of the parts."""
    known = {t: {p: v for p, v in values.items() if p in parts} for t, values in truth.items()}
    return judge(scores, known, truth=which)


def difference(judgement: Judgement, one: str, other: str) -> dict[str, float]:
    """Weighted tau of one score less that of another: the mean over targets and its interval."""
    taus = [{on.target: on.weighted_tau for on in judgement[name].on} for name in (one, other)]
    apart = np.array([(taus[0][t] or 0.0) - (taus[1][t] or 0.0) for t in taus[0]])
    draw = np.random.default_rng(derived_seed(0, "ntk", one))
    means = apart[draw.integers(len(apart), size=(RESAMPLES, len(apart)))].mean(1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return {"difference": float(apart.mean()), "low": float(low), "high": float(high)}


def rows_of(judgement: Judgement, which: str, parts: str) -> list[dict[str, Any]]:
    """A row a score, best agreement first."""
    rows = [
        {
            "truth": which,
            "parts": parts,
            "score": one.score,
            "weighted tau": one.weighted_tau.value,
            "weighted tau low": one.weighted_tau.low,
            "weighted tau high": one.weighted_tau.high,
            "regret@1": one.regret_1.value,
            "regret@1 low": one.regret_1.low,
            "regret@1 high": one.regret_1.high,
        }
        for one in judgement.scores
    ]
    return sorted(rows, key=lambda row: -(row["weighted tau"] or -1.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    place, scale = Workplace(args.data), SCALES[args.scale]
    name = "ntk_ranking_mixtures" if scale.mixtures else "ntk_ranking"
    output = args.output or Path(f"reproduce/results/{name}.json")
    parts = [
        part
        for part in candidates(place.protocol)
        if can_be_tuned(part, place) and not part.network.is_lite
    ][: scale.parts]
    if scale.mixtures:
        parts = [part for part in parts if part.network.width == 1 and part.at == "hidden"]
    claimed = {one + MORE if scale.mixtures else one: two for one, two in TWINS.items()}
    targets = TARGETS[: scale.targets]
    scores: Scores = {}
    seconds = []
    for target in targets:
        for part in parts:
            found = scores_of(part, target, place, scale)
            seconds.append(found["seconds"])
            more = with_more_mixtures(part, target, place, scale) if scale.mixtures else {}
            for name, value in (found["scores"] | more).items():
                scores.setdefault(name, {}).setdefault(target, {})[part.name] = value
        print(f"scored {target}", flush=True)
    groups = {
        "small networks": {part.name for part in parts if part.at == "hidden"},
        "with the second convolution": {part.name for part in parts},
    }
    if scale.mixtures:
        groups = {"width 1": {part.name for part in parts}}
    rows: list[dict[str, Any]] = []
    apart: list[dict[str, Any]] = []
    for which in ("fine-tuned", "frozen"):
        truth = {t: values for t, values in truths(place, which).items() if t in targets}
        for words, names in groups.items():
            judgement = judged(scores, truth, which, names)
            rows += rows_of(judgement, which, words)
            variants = {one + HEAD_TOO: two for one, two in TWINS.items()}
            pairs = TWINS | variants | claimed
            apart += [
                {"truth": which, "parts": words, "score": one, "less": other}
                | difference(judgement, one, other)
                for one, other in pairs.items()
            ]
    for row in [*rows, *apart]:
        print({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()})
    decisive = [
        row
        for row in apart
        if (row["truth"], row["parts"]) == ("fine-tuned", next(iter(groups)))
        and row["score"] in claimed
    ]
    evidence = Evidence(
        claim="scores of the tangent kernel agree better with fine-tuned accuracy than their twins "
        f"on frozen features{' (16 mixtures)' if scale.mixtures else ''}",
        holds=all(row["low"] > 0 for row in decisive),
        rows=tuple(rows + apart),
        command=f"python reproduce/ntk_ranking.py --scale {args.scale} --threads {args.threads}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            protocol=place.protocol.digest,
            examples=scale.examples,
            outputs=scale.outputs,
            parts=len(parts),
            kernel_seconds=float(np.mean(seconds)),
        ),
    )
    evidence.save(output)
    print("holds" if evidence.holds else "does not hold")


if __name__ == "__main__":
    main()
