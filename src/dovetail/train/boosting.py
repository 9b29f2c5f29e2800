"""Gradient-boosted trees, as scikit-learn fits them, as one more way to train: the peer for tables.

The trees become tensors (:mod:`dovetail.parts.zoo.trees`), so that what they learnt is a part like
any other: saved without a pickle, evaluated, packed, used by ``predict``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dovetail.core.declared import text
from dovetail.core.errors import TaskError
from dovetail.core.records import Record
from dovetail.parts.contract import Port
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part, build
from dovetail.settings.train import Boosting
from dovetail.tasks.arrays import as_float
from dovetail.tasks.task import Task
from dovetail.train.fit import Fit


@dataclass(frozen=True, kw_only=True)
class BoostedFit(Record, kind="boosted-fit", title="Boosted trees on {task}"):
    """How many trees were fitted to how many examples.

    >>> BoostedFit(task="wine", n=124, trees=300, nodes=19).view()[0].text
    '300 trees of at most 19 nodes, fitted to 124 examples.'
    """

    task: str
    n: int
    trees: int
    nodes: int
    shows = (text("{trees} trees of at most {nodes} nodes, fitted to {n} examples."),)


def boost(
    task: Task,
    *,
    rounds: int = Boosting.rounds,
    rate: float = Boosting.rate,
    leaves: int = Boosting.leaves,
    seed: int = 0,
) -> Fit:
    """Fit scikit-learn's histogram gradient boosting to the training split of a table.

    Args:
        task: Vectors, with classes or one number to predict.
        rounds: Trees for each output, one after the other.
        rate: How much of what is left a tree corrects.
        leaves: Of a tree, at most.
        seed: Of what scikit-learn draws.

    >>> from dovetail.measure.evaluate import evaluate
    >>> rows = torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    >>> task = Task(rows, (rows[:, 0] > rows[:, 1]).long(), name="larger")
    >>> evaluate(boost(task).part, task).accuracy > 0.8
    True
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    Boosting.check({"rounds": rounds, "rate": rate, "leaves": leaves})
    if len(task.input_shape) != 1 or task.kind not in ("classes", "regression"):
        raise TaskError(
            f"{task.name!r}: trees are for tables with classes or numbers; images have networks"
        )
    if task.outputs > 1 and task.kind == "regression":
        raise TaskError(f"{task.name!r} has {task.outputs} targets; boosted trees predict one")
    settings: dict[str, Any] = {
        **{"max_iter": rounds, "learning_rate": rate, "max_leaf_nodes": leaves},
        **{"random_state": seed, "early_stopping": False},
    }
    inputs, targets = task.subset("train")
    x, y = as_float(inputs).double().numpy(), targets.numpy().ravel()
    if task.kind == "classes":
        fitted = HistGradientBoostingClassifier(**settings).fit(x, y)
    else:
        fitted = HistGradientBoostingRegressor(**settings).fit(x, y)
    part = _part_of(fitted, task)
    about = {"how": "boosting", "rounds": rounds, "rate": rate, "leaves": leaves, "seed": seed}
    origin = Origin("train", settings=about, task=task.name, task_fingerprint=task.fingerprint)
    trees, nodes = part.module[0].feature.shape  # type: ignore[index]
    record = BoostedFit(task=task.name, n=len(x), trees=trees, nodes=nodes, settings=about)
    return Fit((part.changed(origin=origin),), record)


def _part_of(fitted: Any, task: Task) -> Part:
    """The trees as a part; those of an output that no tree is for stay at its base."""
    trees = [tree.nodes for round in fitted._predictors for tree in round]
    classes = [int(each) for each in getattr(fitted, "classes_", ())]
    outputs = len(fitted._predictors[0])
    most = max(len(nodes) for nodes in trees)
    pair = task.kind == "classes" and outputs == 1
    part = build(
        "boosted-trees",
        inputs=task.input_shape[0],
        outputs=outputs,
        trees=len(trees),
        nodes=max(most, 2),
        depth=max(int(nodes["depth"].max()) for nodes in trees),
        pair=pair,
    )
    state = part.module.state_dict()
    for place, nodes in enumerate(trees):
        leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
        columns = {
            "feature": np.where(leaf, 0, nodes["feature_idx"]),
            "threshold": np.where(leaf, 0.0, nodes["num_threshold"]),
            "left": np.where(leaf, own, nodes["left"]),
            "right": np.where(leaf, own, nodes["right"]),
            "value": np.where(leaf, nodes["value"], 0.0),
        }
        for name, column in columns.items():
            state[f"0.{name}"][place, : len(nodes)] = torch.from_numpy(column.astype(np.float64))
    state["0.base"][:] = torch.from_numpy(np.ravel(fitted._baseline_prediction).astype(np.float64))
    part.module.load_state_dict(state)
    names = tuple(task.classes[each] for each in classes) or None
    contract = replace(
        part.contract,
        gives=(Port((len(names) if names else outputs,)),),
        classes=names,
        kind="classes" if names else "regression",
        inputs=task.input_names or None,
    )
    return part.changed(contract=contract, module=part.module.eval())
