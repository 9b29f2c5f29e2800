"""The platonic estimators: what they fit, and how they tell."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from references.platonic_estimator import outputs, ridge, standardised
from sklearn import datasets
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dovetail.closed_form import LayerFit, PlatonicClassifier, PlatonicRegressor
from dovetail.core.errors import TaskError
from dovetail.core.records import load_record
from dovetail.core.seeds import generator


def drawn(widths, inputs, columns, seed=0):
    """The projections that the recurrence draws: a row for the bias, the features, the labels."""
    found, before = [], inputs
    for i, width in enumerate(widths):
        size = (1 + before + columns, width)
        draw = torch.randn(*size, generator=generator(seed, "try", i, 0), dtype=torch.float64)
        found.append(draw.numpy())
        before = width
    return found


@pytest.mark.parametrize("solver", ["pinv", "cholesky", "eigen"])
def test_the_scores_are_the_slow_ones(rows, solver):
    x, y, _ = rows
    net = PlatonicClassifier(
        (6, 5),
        "tanh",
        "random",
        n_tries=1,
        target_scale=0.5,
        label_weight=2.0,
        ridge=0.1,
        solver=solver,
    ).fit(x, y)
    slow = outputs(x, np.eye(3)[y], drawn((6, 5), 2, 3), np.tanh, 0.5, 2.0, 0.1)
    np.testing.assert_allclose(net.decision_function(x), slow, atol=1e-9)


def test_numbers_are_the_slow_ones_in_their_own_units(rows):
    x, _, y = rows
    several = np.stack([1000 * y + 5, y - 3], 1)
    net = PlatonicRegressor((6,), "tanh", "random", n_tries=1, label_weight=2.0, ridge=0.1)
    standard = (several - several.mean(0)) / several.std(0)
    slow = outputs(x, standard, drawn((6,), 2, 2), np.tanh, 1.0, 2.0, 0.1)
    found = net.fit(x, several).predict(x)
    np.testing.assert_allclose(found, slow * several.std(0) + several.mean(0), rtol=1e-8)


def test_each_input_by_its_own_deviation_is_the_slow_one(rows):
    x, y, _ = rows
    table = np.hstack([40 + x[:, :1], 30000 + 9000 * x[:, 1:], np.full((len(x), 1), 0.1)])
    net = PlatonicClassifier(
        (6, 5), "tanh", "random", n_tries=1, label_weight=2.0, ridge=0.1, scale_inputs="each"
    ).fit(table, y)
    asked = (drawn((6, 5), 3, 3), np.tanh, 1.0, 2.0, 0.1, standardised)
    scores = net.decision_function(table)
    np.testing.assert_allclose(scores, outputs(table, np.eye(3)[y], *asked), atol=1e-9)
    with torch.no_grad():
        module = net.to_torch()(torch.from_numpy(table)).numpy()
    np.testing.assert_allclose(module * net.temperature_, scores, atol=1e-9)
    assert net.record_.settings["scale_inputs"] == "each"
    other = clone(net).set_params(scale_inputs="together").fit(table, y)
    assert abs(other.decision_function(table) - scores).max() > 1e-3


def worst_by_scale(x, y, column, **asked):
    """Accuracy on rows left out, the worst over units of one column, and in its own."""
    fitted = np.arange(len(x)) % 3 > 0
    found = []
    for scale in (1.0, 1e-6, 1e-3, 0.1, 10.0, 1e3, 1e6):
        z = x.copy()
        z[:, column] *= scale
        net = PlatonicClassifier(**asked).fit(z[fitted], y[fitted])
        found.append(net.score(z[~fitted], y[~fitted]))
    return min(found), found[0]


@pytest.mark.parametrize("kind", ["curved", "iris", "wine", "digits", "digits and noise"])
def test_the_unit_of_one_column_does_not_matter_much(kind):
    draw = np.random.default_rng(0)
    if kind == "curved":
        x = draw.normal(size=(400, 3))
        y = np.digitize((x[:, :2] ** 2).sum(1), [0.8, 2.2])
    else:
        x, y = getattr(datasets, f"load_{kind.split()[0]}")(return_X_y=True)
        order = draw.permutation(len(x))
        x, y = x[order], y[order]
    if kind == "digits and noise":
        x = np.hstack([x, draw.normal(size=(len(x), 1))])
    column = x.shape[1] - 1 if "noise" in kind or kind == "curved" else int(x.std(0).argmax())
    worst, own = worst_by_scale(x, y, column)
    assert worst > own - 0.06
    if kind == "curved":
        assert worst_by_scale(x, y, column, scale_inputs="together")[0] < own - 0.2


def test_images_are_taken_together_as_they_are():
    """Pixels of one range, some never fully lit: the same network as without a look at ranges."""
    x, y = datasets.load_digits(return_X_y=True)
    assert np.ptp(x, 0)[np.ptp(x, 0) > 0].min() < 2
    one, other = (
        PlatonicClassifier((30,), scale_inputs=by).fit(x, y) for by in ("auto", "together")
    )
    assert np.array_equal(one.decision_function(x), other.decision_function(x))


def test_a_column_of_rounding_errors_is_one_that_never_changes(rows):
    x, y, _ = rows
    nearly = np.where(x[:, :1] > 0, 0.3, 0.1 + 0.2)  # 0.30000000000000004
    assert len(np.unique(nearly)) == 2
    net = PlatonicClassifier((8,), "tanh", scale_inputs="each").fit(np.hstack([x, nearly]), y)
    assert not net.coefs_[0][2].any()


def test_two_classes_are_one_column(rows):
    x, y, _ = rows
    net = PlatonicClassifier((), ridge=0.0).fit(x, np.array(["owl", "cat"])[(y > 0).astype(int)])
    weights, bias = ridge(x, np.where(y > 0, -1.0, 1.0)[:, None], 0.0)
    assert net.classes_.tolist() == ["cat", "owl"]
    np.testing.assert_allclose(net.decision_function(x), (x @ weights + bias)[:, 0], atol=1e-10)
    assert net.predict(x).tolist() == [
        "owl" if score > 0 else "cat" for score in net.decision_function(x)
    ]


@pytest.mark.parametrize("kind", [PlatonicClassifier, PlatonicRegressor])
def test_neither_offset_nor_unit_of_the_inputs_matters(rows, kind):
    x, y, _ = rows
    asked = {"hidden_layer_sizes": (8, 8), "activation": "tanh", "ridge": 1e-3}
    one, other = kind(**asked).fit(x, y), kind(**asked).fit(50 + 1000 * x, y)
    np.testing.assert_allclose(one.outputs(x), other.outputs(50 + 1000 * x), atol=1e-7)


@pytest.mark.parametrize("projection", ["random", "pca", "elm"])
@pytest.mark.parametrize("solver", ["pinv", "cholesky"])
def test_a_weight_is_so_many_copies(rows, projection, solver):
    x, y, _ = rows
    weights = np.random.default_rng(1).integers(0, 4, len(x))
    net = PlatonicClassifier((4, 4), "tanh", projection, ridge=1e-2, solver=solver)
    weighed = clone(net).fit(x, y, sample_weight=weights)
    copied = clone(net).fit(np.repeat(x, weights, 0), np.repeat(y, weights))
    np.testing.assert_allclose(weighed.decision_function(x), copied.decision_function(x), atol=1e-7)


@pytest.mark.parametrize(
    ("count", "weight", "width"),
    [
        *((4, 1, 100), (50, 1, 100), (51, 1, 25), (199, 1, 99), (200, 1, 100)),
        *((30, 3, 45), (30, 0.1, 100)),
    ],
)
def test_automatic_width_is_never_about_the_rows_copies_counted(count, weight, width):
    x = np.random.default_rng(0).normal(size=(count, 3))
    net = PlatonicRegressor().fit(x, x[:, 0], np.full(count, weight))
    streamed = PlatonicRegressor().fit_batches([(x, x[:, 0], np.full(count, weight))])
    for each in (net, streamed):
        assert each.coefs_[0].shape == (3, width)
        assert each.record_.settings["hidden_layer_sizes"] == [width]


def test_defaults_do_not_sit_where_units_are_as_many_as_rows():
    x, y = datasets.load_iris(return_X_y=True)
    accuracy = {
        widths: cross_val_score(
            make_pipeline(StandardScaler(), PlatonicClassifier(widths)), x, y, cv=5
        ).mean()
        for widths in ("auto", 120)
    }
    assert accuracy["auto"] > 0.92 > accuracy[120]


@pytest.mark.parametrize(
    ("width", "ridge", "warned"),
    [(60, "auto", False), (61, "auto", True), ((8, 200), "auto", True), (200, 1.0, False)],
)
def test_as_many_units_as_rows_are_remarked_on(rows, width, ridge, warned):
    x, y, _ = rows
    record = PlatonicClassifier(width, ridge=ridge).fit(x, y).record_
    said = "fewer units or a ridge of your own"
    assert (said in record.note) == warned
    assert any(said in getattr(block, "text", "") for block in record.view()) == warned
    layer = 1 if isinstance(width, int) else 2
    assert (f"Hidden layer {layer} has" in record.note) == warned


def test_a_rising_distance_is_remarked_on(rows):
    x, y, _ = rows
    net = PlatonicClassifier((24, 2), "tanh", ridge=1e-3).fit(x, y)
    one, two = net.distances_
    assert two > 1.1 * one
    assert f"lowest after hidden layer 1 ({one:.3g}) and rises to {two:.3g}" in net.record_.note
    assert "patience=1" in net.record_.note
    patient = clone(net).set_params(patience=1).fit(x, y)
    assert (patient.record_.kept, patient.record_.note) == (1, "")
    assert clone(net).set_params(hidden_layer_sizes=(2, 24)).fit(x, y).record_.note == ""


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 0, float("nan")],
        ["a", "b", "a", float("nan")],
        np.array([0.0, 1.0, 0.0, np.nan]),
        np.array(["a", "b", "a", np.nan], dtype=object),
        np.array([0, 1, 0, np.nan], dtype=object),
        torch.tensor([0.0, 1.0, 0.0, torch.nan]),
    ],
)
def test_labels_that_are_missing_are_called_so(labels):
    said = "labels hold NaN in 1 of 4 rows, first in row 3; drop those rows, or fill them"
    with pytest.raises(TaskError, match=said):
        PlatonicClassifier((2,)).fit(np.eye(4), labels)
    with pytest.raises(TaskError, match=said):
        PlatonicClassifier((2,)).fit_batches([(np.eye(4), labels)])


@pytest.mark.parametrize("kind", ["Int64", "string", "category", "object"])
def test_labels_that_pandas_lacks_are_called_so(kind):
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series([1, 2, 1, pandas.NA]).astype(kind)
    with pytest.raises(TaskError, match="labels hold NaN in 1 of 4 rows"):
        PlatonicClassifier((2,)).fit(np.eye(4), labels)


def test_a_deep_network_learns_what_a_line_cannot(rows):
    x, y, curve = rows
    assert PlatonicClassifier((32, 32), "tanh").fit(x, y).score(x, y) > 0.95
    assert PlatonicClassifier(()).fit(x, y).score(x, y) < 0.7
    assert PlatonicRegressor((16, 16), "celu").fit(x, curve).score(x, curve) > 0.99


def test_attributes_tell_the_fit(rows, tmp_path):
    x, y, _ = rows
    net = PlatonicClassifier((8, 6), "tanh", n_tries=3, ridge=1e-6).fit(x, y)
    assert [each.shape for each in net.coefs_] == [(2, 8), (8, 6), (6, 3)]
    assert [each.shape for each in net.intercepts_] == [(8,), (6,), (3,)]
    assert (net.n_layers_, net.n_outputs_, net.n_features_in_) == (4, 3, 2)
    z = x
    for weights, bias in zip(net.coefs_[:-1], net.intercepts_[:-1], strict=True):
        z = np.tanh(z @ weights + bias)
    scores = z @ net.coefs_[-1] + net.intercepts_[-1]
    np.testing.assert_allclose(scores, net.decision_function(x), atol=1e-9)
    assert all(isinstance(fit, LayerFit) and fit.tries == 3 for fit in net.fits_)
    error = ((np.eye(3)[y] - scores) ** 2).sum(1).mean()
    assert net.distances_[-1] == pytest.approx(error, rel=1e-6)
    assert (net.conditions_ >= 1).all()
    _, table, figure = net.record_.view()
    assert [row[1] for row in table.rows] == [2, 8, 6]
    assert figure.series[0].y[1:] == tuple(net.distances_)
    assert load_record(net.record_.save(tmp_path / "fit.json")) == net.record_


def test_patience_keeps_the_layers_up_to_the_lowest(rows):
    x, y, _ = rows
    net = PlatonicClassifier((4,) * 60, "tanh", n_tries=1, ridge=1.0, patience=2).fit(x, y)
    best = int(net.distances_.argmin())
    assert len(net.fits_) == best + 3 < 60
    assert len(net.coefs_) == best + 2 == net.record_.kept + 1
    measured = net.to_part().origin.measured["least squares distance"]
    assert measured == pytest.approx(net.distances_[best])
    assert "(dropped)" in str(net.record_.view()[1].rows)


def test_a_long_table_is_thinned(rows):
    x, y, _ = rows
    net = PlatonicClassifier((2,) * 100, "tanh", n_tries=1, ridge=1.0).fit(x, y)
    assert 30 < len(net.record_.view()[1].rows) < 45
    assert net.record_.view()[1].rows[-1][0] == "100"


@pytest.mark.parametrize(
    ("inputs", "width", "chosen"),
    [(2, 8, ["random"]), (16, 8, ["sorted-pca", "random"]), (16, 41, ["random"])],
)
@pytest.mark.parametrize("count", [31, 40])
def test_auto_chooses_by_inputs_and_rows(inputs, width, chosen, count):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(count, inputs))
    chosen = chosen if count > 31 else ["random"]
    net = PlatonicClassifier((width, 4)).fit(x, x[:, 0] > 0)
    assert net.record_.settings["projection"] == chosen


def test_deterministic_needs_no_seed():
    x = np.random.default_rng(0).normal(size=(60, 16))
    y = x[:, 0] * x[:, 1] > 0
    one, other = (
        PlatonicClassifier((20, 10), projection="deterministic", random_state=seed).fit(x, y)
        for seed in (0, 1)
    )
    assert [fit.projection for fit in one.fits_] == ["sorted-pca", "pca"]
    assert np.array_equal(one.decision_function(x), other.decision_function(x))


def test_it_is_at_home_in_scikit_learn(rows):
    x, y, _ = rows
    names = np.array(["ant", "bee", "cat"])[y]
    search = GridSearchCV(
        make_pipeline(StandardScaler(), PlatonicClassifier(activation="tanh")),
        {"platonicclassifier__hidden_layer_sizes": [(2,), (24, 24)]},
        cv=3,
    ).fit(x, names)
    assert search.best_params_ == {"platonicclassifier__hidden_layer_sizes": (24, 24)}
    sure = CalibratedClassifierCV(PlatonicClassifier((16,), "tanh"), cv=3).fit(x, names)
    assert sure.predict_proba(x).shape == (120, 3)
    net = PlatonicClassifier((16,), "tanh").fit(x, names)
    for again in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert again.predict(x).tolist() == net.predict(x).tolist()


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_a_data_frame_names_its_columns(rows, library):
    frames = pytest.importorskip(library)
    x, y, _ = rows
    columns = {"age": x[:, 0], "height": x[:, 1]}
    frame = frames.DataFrame(columns) if library == "pandas" else frames.table(columns)
    net, plain = (PlatonicClassifier((16,), "tanh").fit(each, y) for each in (frame, x))
    assert net.feature_names_in_.tolist() == ["age", "height"]
    assert net.to_part().contract.inputs == ("age", "height")
    assert net.predict(frame).tolist() == plain.predict(x).tolist()
    assert not hasattr(net.fit(x, y), "feature_names_in_")  # nothing of the frame is left


def test_any_monotonic_function_activates(rows):
    x, y, _ = rows
    net = PlatonicClassifier((16,), activation=torch.atan, ridge=1e-6).fit(x, y)
    assert net.score(x, y) > 0.8
    assert "atan" in net.record_.settings["activation"]


@pytest.mark.parametrize("kind", [PlatonicClassifier, PlatonicRegressor])
@pytest.mark.parametrize("widths", [(3,), (300,), (4, 4)])
def test_poor_rows_still_fit(kind, widths):
    x, y = np.array([[1.0, 7.0], [2.0, 7.0]]), [0, 1]
    net = kind(widths).fit(x, y)
    assert bool(net.outputs(x).isfinite().all())
    far = net.outputs([[1.0, -1e6], [2.0, 1e6]])
    np.testing.assert_allclose(far, net.outputs(x), atol=1e-9)  # what never changed says nothing


def test_one_row_predicts_itself():
    net = PlatonicRegressor((3,)).fit([[1.0, 2.0]], [5.0])
    assert net.predict([[1.0, 2.0], [9.0, 9.0]]).tolist() == pytest.approx([5.0, 5.0])


def test_a_target_that_never_changes_is_predicted(rows):
    x, _, y = rows
    found = PlatonicRegressor((4,)).fit(x, np.stack([y, np.full(len(y), 0.1)], 1)).predict(x)
    np.testing.assert_allclose(found[:, 1], 0.1, atol=1e-12)
