from __future__ import annotations

import pytest
import torch

import dovetail as dt
from dovetail.core.errors import SettingsError, TaskError
from dovetail.flows.train import train


def fitted(tmp_path, source="digits", **options):
    return train(source, how="closed-form", shelf=tmp_path / "shelf", **options)


def test_a_network_is_solved_for_measured_and_shelved(tmp_path):
    outcome = fitted(tmp_path, args={"hidden": [64, 32]}, name="solved", seed=3)
    part = dt.Shelf(tmp_path / "shelf").get(outcome.data["ref"])
    assert part.origin.how == "closed-form"
    assert part.origin.task == "digits"
    assert next(part.module.parameters()).dtype == torch.float32
    accuracy = dt.evaluate(part, dt.load_task("digits")).accuracy
    assert accuracy == pytest.approx(part.origin.measured["test accuracy"])
    assert accuracy > 0.9


def test_the_same_seed_gives_the_same_part(tmp_path):
    refs = [fitted(tmp_path, args={"hidden": [16]}, seed=1).data["ref"] for _ in range(2)]
    shelf = dt.Shelf(tmp_path / "shelf")
    assert shelf.get(refs[0]).digest == shelf.get(refs[1]).digest


def test_numbers_are_fitted_too(tmp_path):
    x = torch.linspace(-1, 1, 300)[:, None]
    table = tmp_path / "sine.csv"
    lines = [f"{float(a)},{float((3 * a).sin())}" for a in x]
    table.write_text("\n".join(["x,y", *lines]))
    outcome = fitted(
        tmp_path, str(table), args={"hidden": [16, 16], "activation": "tanh"}, name="sine"
    )
    assert outcome.data["measures"]["test r2"] > 0.999


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"net": "lenet5"}, "multi-layer perceptrons"),
        ({"args": {"norm": "batch"}}, "hidden= and activation= alone"),
        ({"start": "other"}, "one new network"),
        ({"clip": 1.0}, "about steps"),
        ({"augment": "flip"}, "about steps"),
        ({"objective": "al"}, "is an option of --how modular"),
        ({"projection": ("randon",)}, "did you mean"),
        ({"args": {"activation": "gelu"}}, "monotonic"),
    ],
)
def test_what_does_not_apply_is_refused_and_nothing_shelved(tmp_path, options, said):
    with pytest.raises(SettingsError, match=said):
        fitted(tmp_path, **options)
    assert not list((tmp_path / "shelf").glob("*/*"))


def test_pairs_are_refused(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises((TaskError, SettingsError)):
        fitted(tmp_path, str(table), task_options={"kind": "pairs"})


def test_options_of_closed_form_are_refused_elsewhere(tmp_path):
    with pytest.raises(SettingsError, match="--tries is an option of --how closed-form"):
        train("digits", shelf=tmp_path / "shelf", tries=3)
