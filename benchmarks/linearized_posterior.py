"""What do a fit and exact predictive variances of a linearised network cost beside a peer's?

Condition the linearised network on 500 samples with unit prior and known noise, then take 200
predictive variances: ours in float64 from layer factors, and ``FunctionalLaplace`` of laplace-torch
0.3 with its BackPACK backend, which writes Jacobians out, in float32 as it comes and all samples in
one batch, its fastest.  The same two networks as in ``tangent_gram.py``, by alternating rounds in
one process (processor time, median of ratios).  Before that, on few samples and in float64 on both
sides, the variances must be the same numbers.  Where the peer is not installed ours is timed alone.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from tangent_gram import networks, ratio
from torch import Tensor, nn

from dovetail.adapt.posterior import condition_on_functions
from dovetail.core.evidence import Evidence, environment
from dovetail.linalg.tangent import TangentFeatures

try:
    from laplace import FunctionalLaplace
    from laplace.curvature import BackPackGGN
except ImportError:
    FunctionalLaplace = None

NEW, CHECKED, NOISE = 200, 50, 0.01
LEAST = {"mlp": 50.0, "lenet": 4.0}


def ours(model: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    features = TangentFeatures(model, x)
    with torch.no_grad():
        residual = (y - model(x)).double()
    posterior = condition_on_functions(features, residual, torch.full_like(residual, NOISE), {})
    return posterior.variance(TangentFeatures(model, new)).flatten()


def peer(model: nn.Module, x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    data = torch.utils.data.TensorDataset(x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = FunctionalLaplace(
            model,
            "regression",
            n_subset=len(x),
            sigma_noise=NOISE**0.5,
            prior_precision=1.0,
            backend=BackPackGGN,
        )
        fit.fit(torch.utils.data.DataLoader(data, batch_size=len(x)))
        return fit._glm_predictive_distribution(new)[1].flatten()


def measured(name: str, model: nn.Module, x: Tensor, rounds: int) -> dict[str, Any]:
    y, new = torch.randn(len(x), 1), torch.randn_like(x[:NEW])
    work = {"ours": ours} if FunctionalLaplace is None else {"ours": ours, "peer": peer}
    wide = copy.deepcopy(model).double()
    few = [one[:CHECKED].double() for one in (x, y, new)]
    checked = {kind: run(copy.deepcopy(wide), *few) for kind, run in work.items()}
    times: dict[str, list[float]] = {kind: [] for kind in work}
    found: dict[str, Tensor] = {}
    for _ in range(rounds):
        for kind, run in work.items():
            own = copy.deepcopy(model)  # the peer leaves hooks behind
            began = time.process_time()
            found[kind] = run(own, x, y, new).double()
            times[kind].append(time.process_time() - began)
    row: dict[str, Any] = {"network": name, "samples": len(x), "variances": len(new)}
    row |= {f"{kind} s": statistics.median(each) for kind, each in times.items()}
    if "peer" in work:
        gap = (checked["ours"] - checked["peer"]).abs().max() / checked["ours"].mean()
        loss = (found["ours"] - found["peer"]).abs().max() / found["ours"].mean()
        row |= {
            "peer / ours": ratio(times["peer"], times["ours"]),
            "must be at least": LEAST[name],
            "float64 variances differ by": float(gap),
            "the peer's float32 variances differ by": float(loss),
        }
        row["holds"] = row["peer / ours"] >= LEAST[name] and float(gap) < 1e-6
    print(row)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/linearized_posterior.json")
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if FunctionalLaplace is None:
        print("laplace-torch with BackPACK: not installed, nothing to compare with or to record")
    rows = [measured(name, *made, args.rounds) for name, made in networks().items()]
    if FunctionalLaplace is None:
        return
    evidence = Evidence(
        claim="a fit on 500 samples and 200 exact predictive variances cost a fiftieth of "
        "laplace-torch's FunctionalLaplace on a network of matrices and a quarter on LeNet-5",
        holds=all(row["holds"] for row in rows),
        rows=tuple(rows),
        command=f"python benchmarks/linearized_posterior.py --threads {args.threads}",
        settings=environment(threads=args.threads, rounds=args.rounds, laplace="0.3", noise=NOISE),
    )
    evidence.save(args.output)
    if not evidence.holds:
        raise SystemExit("the posterior costs more than that, or is another one")


if __name__ == "__main__":
    main()
