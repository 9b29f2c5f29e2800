"""What linearised encoders are compared with: a regression on activations, and fine-tuning."""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from dovetail.core.seeds import generator
from dovetail.linalg.parameters import chosen_parameters
from linearized.encoder import Protocol
from linearized.images import Split
from linearized.inference import linear_model, measured
from linearized.keeping import Found

PENALTIES = (0.001, 0.01, 0.1, 1.0)
RATE = 1e-3


def regression(features: nn.Sequential, splits: dict[str, Split]) -> tuple[nn.Linear, Found]:
    """The logistic regression on activations that is best on validation, as a layer."""
    model = linear_model(features)
    rows = {name: model.outputs(x) for name, (x, _) in splits.items()}
    labels = {name: y for name, (_, y) in splits.items()}
    middle, scale = rows["train"].mean(0), rows["train"].std(0).clamp(min=1e-6)
    best, fitted = -1.0, None
    for penalty in PENALTIES:
        one = LogisticRegression(C=penalty, max_iter=500)
        one.fit(((rows["train"] - middle) / scale).numpy(), labels["train"].numpy())
        right = one.score(
            ((rows["validation"] - middle) / scale).numpy(), labels["validation"].numpy()
        )
        if right > best:
            best, fitted = right, one
    assert fitted is not None
    head = nn.Linear(len(middle), 10)
    weight = torch.zeros(10, len(middle), dtype=torch.float64)
    bias = torch.full((10,), -10.0, dtype=torch.float64)  # a class without labels
    weight[fitted.classes_] = torch.from_numpy(fitted.coef_) / scale
    bias[fitted.classes_] = torch.from_numpy(fitted.intercept_) - weight[fitted.classes_] @ middle
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        said = {name: head.double()(rows[name]).softmax(1) for name in ("validation", "test")}
    return head.float(), measured(said["validation"], said["test"], labels)


def finetuned(
    features: nn.Sequential,
    head: nn.Linear,
    splits: dict[str, Split],
    params: list[str],
    seed: int,
    protocol: Protocol,
) -> Found:
    """Train the head and the chosen layers by Adam, norms in evaluation; keep the best epoch."""
    children = [*copy.deepcopy(features).named_children(), ("head", copy.deepcopy(head))]
    net = nn.Sequential(OrderedDict(children)).eval()
    chosen = chosen_parameters(net, [*params, "head"])
    adam = torch.optim.Adam([net.get_parameter(name) for name in chosen], lr=RATE)
    x, y = splits["train"]
    draw = generator(seed, "fine-tuning")
    best, kept, step = -1.0, None, 0
    while step < protocol.steps:
        for rows in torch.randperm(len(x), generator=draw).split(protocol.batch_size):
            adam.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            adam.step()
            step += 1
        said = {name: _said(net, splits[name][0]) for name in ("validation", "test")}
        labels = splits["validation"][1]
        right = float((said["validation"].argmax(1) == labels).double().mean())
        if right > best:
            best, kept = right, said
    assert kept is not None
    labelled = {name: y for name, (_, y) in splits.items()}
    return measured(kept["validation"], kept["test"], labelled)


def _said(net: nn.Module, x: Tensor) -> Tensor:
    return linear_model(net).outputs(x).softmax(1)
