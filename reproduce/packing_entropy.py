"""Entropy of weights, gradients and bits over training.  (Figures 3.2, 3.3 and 3.5, EFF.)

"Efficient deep learning", chapter 3: while a network is trained, the gradient of each layer and the
entropy of its weights fall together; so the entropy, which a few weights tell, can choose the bits.
A floor of c = 5 then takes 6.8 bits a weight on average before coding and 3.55 after it, c = 6 3.78
after it.  Fixed before running:

**Setting.**  :mod:`packing.workers`, 2 workers that average plain weights once an epoch: what is
measured does not disturb the training.  ``small``: 3000 rows of MNIST and 30 epochs, five seeds;
``paper``: all rows and 100 epochs, one seed.  After each epoch, for each of the three weight
matrices: G, the root mean square of the derivative of the squared error on all training rows; the
entropy of a histogram of 2^M bins for M = 2, 4, 6, 8 and shares F = 0.01, 0.03, 0.1 and 1 of the
weights (at least one); the stable rank; and the bits with c = 5 and c = 6 (M = 4, F = 0.03), chosen
(before coding) and coded (the whole container over the number of weights).

**Entropy holds** if, in the mean over seeds, (a) the correlation of log2(G + 1) and the entropy
(M = 4, all weights) over the epochs is above 0.75 in every layer; (b) the entropy of 3 % of the
weights of the first layer (the others have too few weights for a share to mean much, and are
reported) is within 0.1 bits of that of all; (c) fewer bins only shift the curve: the entropies with
M = 4 and M = 8 correlate above 0.9 in every layer; (d) gradient and entropy of every layer are
lower in the last epoch than after the first.

**Rates hold** if the averages over the epochs are within a tenth of the source's: 6.8 chosen and
3.55 coded bits with c = 5, 3.78 coded with c = 6.

``--scale tiny`` is a smoke test on 8 x 8 digits.
"""

from __future__ import annotations

from functools import partial
from statistics import fmean, stdev
from typing import Any

import torch
from linearized.keeping import Found, found_once
from linearized.regression import arguments
from packing.workers import Digits, digits, training, whole_gradient
from torch import nn

from dovetail.core.evidence import Evidence, environment
from dovetail.measure.weights import root_mean_square, stable_rank, weight_entropy
from dovetail.pack.compressing import compress
from dovetail.pack.packed import describe

ROWS = {"tiny": 100, "small": 3000, "paper": None}
EPOCHS = {"tiny": 3, "small": 30, "paper": 100}
SEEDS = {"tiny": 2, "small": 5, "paper": 1}
LAYERS = ("0.weight", "2.weight", "4.weight")
PROBES, SHARES, FLOORS = (2, 4, 6, 8), (0.01, 0.03, 0.1, None), (5, 6)
CORRELATED, NEAR, SHIFTED, WITHIN = 0.75, 0.1, 0.9, 0.1
PRINTED = {"chosen bits, c=5": 6.8, "coded bits, c=5": 3.55, "coded bits, c=6": 3.78}


def measured(net: nn.Module, data: Digits) -> Found:
    """Everything after one epoch, by layer and name."""
    found: Found = {}
    gradients = whole_gradient(net, data.train)
    state = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    for layer in LAYERS:
        weight = state[layer]
        found[f"{layer}/gradient"] = root_mean_square(gradients[layer])
        found[f"{layer}/stable rank"] = stable_rank(weight)
        for bits in PROBES:
            for share in SHARES:
                name = f"{layer}/entropy M={bits} F={1 if share is None else share}"
                found[name] = weight_entropy(weight, bits, share)
    for c in FLOORS:
        data_of = compress(state, extra_bits=c)
        packed = describe(data_of)
        matrices = [t for t in packed.tensors if t.bits is not None]
        total = sum(t.elements for t in matrices)
        found[f"all/chosen bits, c={c}"] = sum((t.bits or 0) * t.elements for t in matrices) / total
        found[f"all/coded bits, c={c}"] = packed.coded
        for tensor in matrices:
            found[f"{tensor.name}/coded bits, c={c}"] = tensor.coded
    return found


def found_with(data: Digits, seed: int, epochs: int) -> Found:
    found: Found = {}
    for epoch in training(data, workers=2, seed=seed, epochs=epochs, packing=None):
        here = measured(epoch.net, data)
        found |= {f"{epoch.number}/{name}": value for name, value in here.items()}
    return found


def curve(run: Found, epochs: int, name: str) -> torch.Tensor:
    return torch.tensor([run[f"{e}/{name}"] for e in range(1, epochs + 1)], dtype=torch.float64)


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def of_layer(run: Found, epochs: int, layer: str) -> dict[str, float]:
    def of(name: str) -> torch.Tensor:
        return curve(run, epochs, f"{layer}/{name}")

    gradient, entropy = of("gradient"), of("entropy M=4 F=1")
    return {
        "correlation of log2(G+1) and entropy": correlation((gradient + 1).log2(), entropy),
        "correlation of entropy at M=4 and M=8": correlation(entropy, of("entropy M=8 F=1")),
        "error of the entropy of 3 %": float((of("entropy M=4 F=0.03") - entropy).abs().mean()),
        "gradient, first epoch": float(gradient[0]),
        "gradient, last": float(gradient[-1]),
        "entropy M=4, first epoch": float(entropy[0]),
        "entropy M=4, last": float(entropy[-1]),
        "entropy M=8, last": float(of("entropy M=8 F=1")[-1]),
        "stable rank, first epoch": float(of("stable rank")[0]),
        "stable rank, last": float(of("stable rank")[-1]),
        "correlation of stable rank and entropy": correlation(of("stable rank"), entropy),
    }


def spread(values: list[float], name: str) -> dict[str, float]:
    return {name: fmean(values)} | (
        {f"{name}, deviation": stdev(values)} if len(values) > 1 else {}
    )


def verdicts(layers: dict[str, dict[str, float]]) -> dict[str, bool]:
    rows = layers.values()
    return {
        "log2(G+1) and entropy correlate above 0.75 in every layer": all(
            row["correlation of log2(G+1) and entropy"] > CORRELATED for row in rows
        ),
        "3 % of the weights tell the entropy of the first layer": layers[LAYERS[0]][
            "error of the entropy of 3 %"
        ]
        < NEAR,
        "fewer bins only shift the curve": all(
            row["correlation of entropy at M=4 and M=8"] > SHIFTED for row in rows
        ),
        "gradient and entropy fall in every layer": all(
            row[f"{name}, last"] < row[f"{name}, first epoch"]
            for row in rows
            for name in ("gradient", "entropy M=4")
        ),
    }


def main() -> None:
    args = arguments(__doc__, "packing_entropy")
    scale, epochs = args.scale, EPOCHS[args.scale]
    data = digits(ROWS[scale], tiny=scale == "tiny")
    protocol = {"rows": len(data.train[0]), "epochs": epochs}
    runs = [
        found_once(
            args.kept / scale,
            f"seed {seed}",
            protocol,
            partial(found_with, data, seed, epochs),
        )
        for seed in range(SEEDS[scale])
    ]
    settings = environment(threads=args.threads, scale=scale, seeds=len(runs), **protocol)
    command = f"python reproduce/packing_entropy.py --scale {scale}"

    each = {layer: [of_layer(run, epochs, layer) for run in runs] for layer in LAYERS}
    names = tuple(each[LAYERS[0]][0])
    means = {
        layer: {name: fmean(row[name] for row in rows) for name in names}
        for layer, rows in each.items()
    }
    said = verdicts(means)
    rows: list[dict[str, Any]] = [{"claim": name, "holds": holds} for name, holds in said.items()]
    for layer in LAYERS:
        row: dict[str, Any] = {"layer": layer}
        for name in names:
            row |= spread([one[name] for one in each[layer]], name)
        rows.append(row)
    entropy = Evidence(
        claim="the entropy of each layer's weights follows its gradient over training",
        holds=all(said.values()),
        rows=tuple(rows),
        command=command,
        settings=settings,
    )

    rates: list[dict[str, Any]] = []
    for c in FLOORS:
        for what in ("chosen", "coded"):
            name = f"{what} bits, c={c}"
            curves = [curve(run, epochs, f"all/{name}") for run in runs]
            row = {"bits a weight": name, "printed": PRINTED.get(name)}
            row |= spread([float(values.mean()) for values in curves], "mean over epochs")
            row |= spread([float(values[0]) for values in curves], "first epoch")
            row |= spread([float(values[-1]) for values in curves], "last epoch")
            rates.append(row)
    rate = Evidence(
        claim="the entropy rule takes 6.8 bits a weight before coding and 3.55 after it with "
        "c = 5, and 3.78 with c = 6",
        holds=all(
            abs(row["mean over epochs"] / row["printed"] - 1) <= WITHIN
            for row in rates
            if row["printed"] is not None
        ),
        rows=tuple(rates),
        command=command,
        settings=settings,
    )
    for evidence, output in (
        (entropy, args.output),
        (rate, args.output.with_name(args.output.name.replace("entropy", "rates"))),
    ):
        evidence.save(output)
        print(evidence.claim, "holds" if evidence.holds else "does not hold")
        for row in evidence.rows:
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})


if __name__ == "__main__":
    main()
