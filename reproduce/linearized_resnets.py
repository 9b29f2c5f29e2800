"""Are linearised residual networks as accurate as the networks, and how sure?  (Figure 4, LIN.)

Residual networks of several depths are trained on CIFAR-10 and linearised around their weights.
Fitted to the same training images, by variational inference (mean field) and to the most probable
weights (MAP): the linearised network, whose prior mean is the network, and the finite tangent
kernel, whose prior mean is zero.  Accuracy, negative log-likelihood and expected calibration error
(15 bins) on test images, and the last two also after a temperature fitted on validation images.

Scale small: images of 16x16, 4000 to train on, 500 to validate, 2000 to test; ResNet-8 and
ResNet-20 of width 8, post-activation, 20 epochs without augmentation; 3 seeds.  The prior gives
every weight one variance, such that outputs have a prior variance of 0.1, 1 or 10 on average, the
one with the best validation likelihood on the shallowest network's first seed, for each way of
fitting; the source's own prior, variance 1 a weight, is a further row of the shallowest network.
The three variances and the number of steps were set after a look at that network's validation
images; 200 steps of 128 images may end short of the maximum.

The claims of the source, fixed beforehand: at every depth (accuracy) variational inference in the
linearised network is within 2 points of the network, in the finite tangent kernel within 5; and
(confidence) both have a higher negative log-likelihood and calibration error than the network.
Needs ``make data``.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from compatibility.protocol import mean, spread
from linearized.images import Split, cifar10, prepared
from linearized.inference import Linearized, linear_model, measured
from linearized.keeping import Found, found_once
from linearized.residual import PAPER, SMALL, TINY, Protocol, source
from torch import Tensor, nn

import dovetail as dt
from dovetail.core.evidence import Evidence, environment

VARIANCES = (0.1, 1.0, 10.0)
MODELS = ("linearised network", "finite tangent kernel")
WAYS = ("VI", "MAP")
CLOSE = {"linearised network": 0.02, "finite tangent kernel": 0.05}
SHOWN = ("accuracy", "nll", "ece", "tempered nll", "tempered ece")


def by_network(net: nn.Module, splits: dict[str, Split]) -> Found:
    model = linear_model(net)
    said = {name: model.outputs(x).softmax(1) for name, (x, _) in splits.items()}
    found = measured(said["validation"], said["test"], _labels(splits))
    return {"train accuracy": _accuracy(said["train"], splits["train"][1]), **found}


def by_inference(
    net: nn.Module,
    splits: dict[str, Split],
    kind: str,
    way: str,
    variance: float | None,
    seed: int,
    protocol: Protocol,
) -> Found:
    model = linear_model(net)
    factor = 1.0 if kind == "linearised network" else 0.0
    means = {name: factor * model.outputs(x) for name, (x, _) in splits.items()}
    fitted = Linearized(model, variance, splits["train"][0]).fit(
        splits["train"],
        means["train"],
        by=way,
        steps=protocol.steps,
        batch_size=protocol.batch_size,
        seed=seed,
    )
    validation, test = (
        fitted.probabilities(splits[name][0], means[name], protocol.draws)
        for name in ("validation", "test")
    )
    assert fitted.found is not None
    facts = {
        "prior variance of a weight": next(iter(fitted.scales.values())),
        "steps": float(fitted.found.diagnostics["steps"]),
        "elbo": float(fitted.found.diagnostics["elbo"]),
    }
    return {**measured(validation, test, _labels(splits)), **facts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=("tiny", "small", "paper"), default="small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--kept", type=Path, default=Path("data/linearized"))
    parser.add_argument(
        "--output", type=Path, default=Path("reproduce/results/linearized_resnets.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    protocol = {"tiny": TINY, "small": SMALL, "paper": PAPER}[args.scale]
    task = cifar10(
        args.data,
        train=protocol.train,
        validation=protocol.validation,
        test=protocol.test,
        size=protocol.pixels,
    )
    rows = list(_rows(task, protocol, args.seeds, args.kept))
    Evidence(
        claim="linearised residual networks are as accurate as the networks and less calibrated",
        holds=_accurate(rows, protocol) and _less_calibrated(rows, protocol),
        rows=tuple(rows),
        command=f"python reproduce/linearized_resnets.py --scale {args.scale}",
        settings=environment(
            threads=args.threads,
            scale=args.scale,
            accurate=_accurate(rows, protocol),
            less_calibrated=_less_calibrated(rows, protocol),
            protocol=asdict(protocol),
        ),
    ).save(args.output)


def _rows(task: dt.Task, protocol: Protocol, seeds: int, kept: Path) -> list[dict[str, object]]:
    splits = prepared(task)
    facts = asdict(protocol)
    chosen: dict[tuple[str, str], float] = {}
    found: dict[tuple[str, str, str, str], list[Found]] = {}
    for seed in range(seeds):
        for net in protocol.nets:
            module = source(net, task, seed, protocol, kept)

            def once(
                kind: str, way: str, variance: float | None, net=net, seed=seed, module=module
            ) -> Found:
                key = f"{protocol.scale} {net} {seed} {kind} {way} {variance}"
                make = partial(by_inference, module, splits, kind, way, variance, seed, protocol)
                return found_once(kept, key, facts, make)

            own = partial(by_network, module, splits)
            key = f"{protocol.scale} {net} {seed} network"
            found.setdefault((net, "network", "", ""), []).append(found_once(kept, key, facts, own))
            for kind in MODELS:
                for way in WAYS:
                    if (kind, way) not in chosen:
                        chosen[kind, way] = min(
                            VARIANCES, key=lambda v: once(kind, way, v)["validation nll"]
                        )
                    variance = chosen[kind, way]
                    where = (net, kind, way, f"{variance:g}")
                    found.setdefault(where, []).append(once(kind, way, variance))
                if net == protocol.nets[0]:
                    where = (net, kind, "VI", "one a weight")
                    found.setdefault(where, []).append(once(kind, "VI", None))
    return [_row(where, runs) for where, runs in sorted(found.items())]


def _row(where: tuple[str, str, str, str], runs: list[Found]) -> dict[str, object]:
    row: dict[str, object] = dict(zip(("net", "model", "by", "prior variance"), where, strict=True))
    for name in SHOWN:
        values = [run[name] for run in runs]
        row[name], row[f"{name}, spread"] = mean(values), spread(values)
    row["temperature"] = mean([run["temperature"] for run in runs])
    row["runs"] = len(runs)
    return row


def _pairs(
    rows: list[dict[str, object]], protocol: Protocol
) -> list[tuple[str, dict[str, object], dict[str, object]]]:
    """Each kind of model fitted by variational inference beside its network."""
    pairs = []
    for net in protocol.nets:
        own = next(row for row in rows if (row["net"], row["model"]) == (net, "network"))
        for kind in MODELS:
            fits = [
                row
                for row in rows
                if (row["net"], row["model"], row["by"]) == (net, kind, "VI")
                and row["prior variance"] != "one a weight"
            ]
            pairs.append((kind, own, fits[0]))
    return pairs


def _accurate(rows: list[dict[str, object]], protocol: Protocol) -> bool:
    return all(
        _number(own, "accuracy") - _number(fit, "accuracy") <= CLOSE[kind]
        for kind, own, fit in _pairs(rows, protocol)
    )


def _less_calibrated(rows: list[dict[str, object]], protocol: Protocol) -> bool:
    return all(
        _number(fit, name) > _number(own, name)
        for _, own, fit in _pairs(rows, protocol)
        for name in ("nll", "ece")
    )


def _number(row: dict[str, object], name: str) -> float:
    return float(str(row[name]))


def _labels(splits: dict[str, Split]) -> dict[str, Tensor]:
    return {name: y for name, (_, y) in splits.items()}


def _accuracy(said: Tensor, labels: Tensor) -> float:
    return float((said.argmax(1) == labels).double().mean())


if __name__ == "__main__":
    main()
