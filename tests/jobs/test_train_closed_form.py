from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

import dovetail as dt
from dovetail.closed_form import PlatonicClassifier
from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.jobs.train import train
from dovetail.settings.train import WAYS, Steps, owners_of


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
        ({"args": {"norm": "batch"}}, "hidden=, activation= and scale_inputs= alone"),
        ({"start": "other"}, "one new network"),
        ({"objective": "al"}, "is an option of how='modular'"),
        ({"projection": ("randon",)}, "did you mean"),
        ({"args": {"activation": "gelu"}}, "activation is one of .* did you mean elu"),
        ({"precision": "float16"}, "unknown precision 'float16'; did you mean"),
        ({"rank": 0}, "rank must be a whole number from 1 on"),
        ({"target_scale": 1e40}, "beyond float32; say precision='float64'"),
    ],
)
def test_what_does_not_apply_is_refused_and_nothing_shelved(tmp_path, options, said):
    with pytest.raises(SettingsError, match=said):
        fitted(tmp_path, **options)
    assert not list((tmp_path / "shelf").glob("*/*"))


@pytest.fixture
def wine(tmp_path):
    """A table of thirteen columns of unlike units."""
    x, y = load_wine(return_X_y=True)
    lines = [",".join([*(str(a) for a in row), f"kind{b}"]) for row, b in zip(x, y, strict=True)]
    table = tmp_path / "wine.csv"
    table.write_text("\n".join([",".join([*(f"c{i}" for i in range(13)), "kind"]), *lines]))
    return table


def test_columns_of_a_table_may_be_of_unlike_units(tmp_path, wine):
    options = {"source": str(wine), "task_options": {"target": "kind"}}
    auto, each = (
        fitted(tmp_path, **options, name="wine", args=args)
        for args in (None, {"scale_inputs": "each"})
    )
    for outcome, scale in ((auto, "auto"), (each, "each")):
        assert outcome.data["measures"]["test accuracy"] > 0.9
        assert outcome.records[0].settings["scale_inputs"] == scale
        assert outcome.data["layers"]["settings"]["scale_inputs"] == scale
    part = dt.Shelf(tmp_path / "shelf").get(each.data["ref"])
    assert part.origin.settings["scale_inputs"] == "each"
    task = dt.load_task(str(wine), target="kind")
    inputs, targets = task.subset("train")
    scaler = StandardScaler().fit(inputs.double())
    plain = PlatonicClassifier(scale_inputs="together").fit(
        scaler.transform(inputs.double()), targets
    )
    with torch.no_grad():
        found = part.module(inputs).numpy() * part.origin.settings["temperature"]
    np.testing.assert_allclose(
        found, plain.decision_function(scaler.transform(inputs.double())), atol=1e-3
    )


def test_without_widths_the_rows_decide(tmp_path, wine):
    outcome = fitted(tmp_path, str(wine), task_options={"target": "kind"})
    rows = dt.load_task(str(wine), target="kind").size("train")
    assert outcome.records[0].settings["hidden_layer_sizes"] == [rows // 2]
    assert fitted(tmp_path).records[0].settings["hidden_layer_sizes"] == [100]
    assert fitted(tmp_path).records[0].settings["scale_inputs"] == "auto"


def test_pairs_are_refused(tmp_path):
    table = tmp_path / "pairs.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises((TaskError, SettingsError)):
        fitted(tmp_path, str(table), task_options={"kind": "pairs"})


STEPWISE = {
    **{"epochs": 20, "batch_size": 64, "optimiser": "sgd", "lr": 0.1, "weight_decay": 5e-4},
    **{"schedule": "one-cycle", "clip": 1.0, "augment": "flip", "device": "auto"},
    **{"resume": True, "checkpoint_seconds": 10.0, "filter": "inputs:10"},
}


@pytest.mark.parametrize("name", STEPWISE)
def test_options_of_steps_are_refused_even_if_they_say_what_is_usual(tmp_path, name):
    said = f"{name} is an option of how='end-to-end, .* or compatible', not of how='closed-form'"
    with pytest.raises(SettingsError, match=said):
        fitted(tmp_path, **{name: STEPWISE[name]})


CLOSED_FORM = {
    **{"projection": ("pca",), "tries": 3, "ridge": "auto", "solver": "auto", "ema": 0.0},
    **{"target_scale": 1.0, "label_weight": 0.0, "rank": 3, "precision": "float32"},
    **{"filters": 8, "patch_size": 3, "pool": 2},
}


@pytest.mark.parametrize("how", [way for way in WAYS if way != "closed-form"])
@pytest.mark.parametrize("name", CLOSED_FORM)
def test_options_of_closed_form_are_refused_elsewhere(tmp_path, how, name):
    said = f"{name} is an option of how='closed-form', not of how='{how}'"
    with pytest.raises(SettingsError, match=said):
        train("digits", shelf=tmp_path / "shelf", how=how, **{name: CLOSED_FORM[name]})


def test_every_option_is_somebodys():
    assert WAYS["closed-form"].settings.declared.keys() == {*CLOSED_FORM, "patience"}
    assert len(owners_of("epochs")) == 6
    assert {*STEPWISE, "momentum", "patience"} == {*Steps.declared}


def test_what_float32_costs_is_measured_and_said(tmp_path):
    """Conditions of billions: the digits that float32 lacks are seen in the accuracy."""
    t = torch.linspace(1, 9, 600).double()
    table = tmp_path / "wave.csv"
    lines = [f"{float(a)},{float((5 * a).sin())}" for a in t]
    table.write_text("\n".join(["x,y", *lines]))
    asked = {"args": {"hidden": [32] * 4, "activation": "tanh"}, "ridge": 0.0, "name": "wave"}
    rounded = fitted(tmp_path, str(table), **asked)
    task = dt.load_task(str(table))
    part = dt.Shelf(tmp_path / "shelf").get(rounded.data["ref"])
    measures = rounded.data["measures"]
    name, value = next(iter(dt.evaluate(part, task).measures.items()))
    assert measures[f"test {name}"] == value
    exact = fitted(tmp_path, str(table), precision="float64", **asked)
    kept = dt.Shelf(tmp_path / "shelf").get(exact.data["ref"])
    assert {each.dtype for each in kept.module.parameters()} == {torch.float64}
    assert measures[f"float64 test {name}"] == exact.data["measures"][f"test {name}"] != value
    assert (rounded.data["precision"], exact.data["precision"]) == ("float32", "float64")
    for outcome, precision in ((rounded, "float32"), (exact, "float64")):
        record = outcome.records[0]
        assert record.settings["precision"] == precision
        assert f"shelved in {precision}" in record.view()[-1].text
        assert load_record(record.save(tmp_path / "fit.json")) == record
    said = rounded.records[0].view()[-1].text
    assert f"{name} {value:.4f}" in said
    assert f"{measures[f'float64 test {name}']:.4f}" in said


def test_low_rank_is_shelved_in_factors(tmp_path):
    whole, low = (
        fitted(tmp_path, args={"hidden": [64, 64]}, name=f"net{rank}", rank=rank)
        for rank in (None, 12)
    )
    shelf = dt.Shelf(tmp_path / "shelf")
    counts = [
        sum(p.numel() for p in shelf.get(each.data["ref"]).module.parameters())
        for each in (whole, low)
    ]
    assert counts == [2 * (64 * 64 + 64) + 650, 2 * (12 * 128 + 12 + 64) + 650]
    assert shelf.get(low.data["ref"]).origin.settings["rank"] == 12
