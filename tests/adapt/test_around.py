"""Around which weights a classifier is linearised: never below a probe, and it says why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import dovetail as dt
from dovetail.adapt import LinearizedClassifier, Probe
from dovetail.adapt import around as around_module
from dovetail.adapt import guarded as guarded_module
from dovetail.adapt.around import late_point, place, posterior_at, scale_at
from dovetail.adapt.laplace import site_roots
from dovetail.adapt.linear_model import LinearModel, Readout
from dovetail.adapt.networks import front_of
from dovetail.adapt.posterior import centred
from dovetail.adapt.tuning import Moves
from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg.tangent import TangentFeatures
from dovetail.parts.part import build
from dovetail.tasks.derive import few


@pytest.fixture(scope="module")
def low():
    """A network that knows the digits below five."""
    task = dt.load_task("digits[0,1,2,3,4]")
    net = build("lenet5", size=8, classes=5)
    return dt.train.end_to_end(net, task, epochs=3, show=False).part


def high(k, seed=0):
    """Some labels of the others, and what to test on."""
    task = dt.load_task("digits[5,6,7,8,9]")
    return few(task, k, seed=seed).subset("train"), task.subset("test"), task.classes


def test_the_head_alone_is_the_probe(low):
    (x, y), (new, _), _ = high(4)
    probe = Probe(low).fit(x, y.numpy())
    found = LinearizedClassifier(low, around="head").fit(x, y.numpy())
    assert found.chosen_ == "probe"
    np.testing.assert_allclose(found.predict_proba(new), probe.predict_proba(new), atol=1e-4)


def test_with_one_label_a_class_it_is_the_start_of_a_small_network_the_head_of_others(
    low, monkeypatch
):
    (x, y), _, _ = high(1)
    found = LinearizedClassifier(low).fit(x, y.numpy())
    assert found.chosen_ == "start"
    assert "one label" in found.diagnostics_["why"]
    monkeypatch.setattr("dovetail.adapt.classifier.SMALL", 0)
    monkeypatch.setattr(around_module, "SMALL", 0)
    assert LinearizedClassifier(low).fit(x, y.numpy()).chosen_ == "probe"


def test_labels_held_out_decide_and_are_told(low):
    (x, y), (new, truth), _ = high(10)
    probe = Probe(low).fit(x, y.numpy())
    found = LinearizedClassifier(low).fit(x, y.numpy())
    losses = found.diagnostics_["held_out_log_loss"]
    assert losses
    assert found.diagnostics_["why"].startswith("on labels held out")
    assert found.score(new, truth.numpy()) >= probe.score(new, truth.numpy()) - 0.05


def test_the_part_says_what_the_estimator_says_and_knows_its_classes(low):
    (x, y), (new, _), classes = high(6)
    found = LinearizedClassifier(low, around="again").fit(x, y.numpy(), class_names=classes)
    part = found.to_part()
    assert part.contract.classes == tuple(classes)
    said = dt.predict(part, new).probabilities
    np.testing.assert_allclose(said, found.predict_proba(new), atol=1e-5)


def test_the_posterior_is_there_when_it_is_asked_for(low, tmp_path):
    (x, y), (new, _), _ = high(4)
    found = LinearizedClassifier(low, around="again").fit(x, y.numpy())
    found.predict_proba(new)
    assert "posterior_" not in vars(found)
    features = found.linear_.features(found._prepare(new[:9]))
    assert not found.posterior_.shift(features).any()  # the network is the mean already
    milder = found.predict_proba(new, link="probit")
    assert milder.max(1).mean() < found.predict_proba(new).max(1).mean()
    assert np.isfinite(found.log_evidence_)
    twin = LinearizedClassifier.load(found.save(tmp_path / "kept"))
    assert (twin.around_, twin.chosen_) == (found.around_, found.chosen_)
    np.testing.assert_allclose(twin.predict_proba(new, link="probit"), milder, atol=1e-9)
    point = LinearizedClassifier.load(found.save(tmp_path / "mean", data=False))
    np.testing.assert_allclose(point.predict_proba(new), found.predict_proba(new), atol=1e-9)
    with pytest.raises(TaskError, match="only the mean was kept"):
        point.predict_proba(new, link="mc")
    with pytest.raises(TaskError, match="fit again with all labels"):
        found.update(x, y.numpy())
    with pytest.raises(SettingsError, match="set_params"):
        twin.fit(x, y.numpy())  # its network has seen the labels
    again = twin.set_params(model=low).fit(x, y.numpy())
    np.testing.assert_allclose(again.predict_proba(new), found.predict_proba(new), atol=1e-6)


def test_what_a_file_cannot_hold_is_refused(low, tmp_path):
    (x, y), _, _ = high(3)
    found = LinearizedClassifier(low.module, around="head").fit(x, y.numpy())
    with pytest.raises(SettingsError, match="no recipe and was fitted"):
        found.save(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"projection": "fixed"}, "are for around='start'"),
        ({"prior": 1.0}, "are for around='start'"),
        ({"model": None}, "without a model"),
    ],
)
def test_settings_of_the_start_are_for_the_start(low, settings, says):
    (x, y), _, _ = high(2)
    with pytest.raises(SettingsError, match=says):
        LinearizedClassifier(**{"model": low, "around": "head", **settings}).fit(x, y.numpy())


def test_a_head_alone_may_be_what_moves(low):
    (x, y), _, _ = high(4)
    found = LinearizedClassifier(low, params="head.*").fit(x, y.numpy())
    assert found.chosen_ == "probe"
    assert all(tensor.requires_grad for tensor in found.to_part().module.parameters())


def test_laplace_at_the_network_is_that_of_a_dense_jacobian():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    x, labels = torch.randn(7, 3).double(), torch.arange(7) % 3
    model = LinearModel(Readout(module, 3), ["body.2.weight", "body.0.weight"])
    moved = {"body.2.weight": module[2].weight.detach(), "body.0.weight": torch.full((4, 3), 0.1)}
    logits = model.outputs(x)
    found = posterior_at(
        model.features(x), logits, labels, moved, [["body.2.weight"], ["body.0.weight"]]
    )
    rows = torch.cat(list(TangentFeatures(model.module, x, list(model.names)).rows()))
    size = {name: moved[name].numel() for name in model.names}
    scales = torch.cat([torch.full((size[n],), found.scales[n]) for n in model.names]).double()
    rows = (rows - rows.mean(0)).reshape(21, -1)
    kernel = (rows * scales) @ rows.T + torch.eye(3).repeat(7, 7)
    roots = torch.block_diag(*site_roots(logits.softmax(1)))
    evidence = float(logits.log_softmax(1).gather(1, labels[:, None]).sum())
    evidence -= 0.5 * sum(float(m.square().sum()) / found.scales[n] for n, m in moved.items())
    evidence -= 0.5 * float(torch.logdet(torch.eye(21).double() + roots.T @ kernel @ roots))
    assert found.log_evidence == pytest.approx(evidence, rel=1e-6)
    assert not found.dual.any()


def test_the_scale_of_a_group_has_the_highest_evidence():
    torch.manual_seed(1)
    features = torch.randn(12, 5).double()
    kernel = centred(features @ features.T, 2) - centred(torch.zeros(12, 12).double(), 2)
    root = site_roots(torch.full((6, 2), 0.5).double())
    distance = 3.0
    found = scale_at(kernel, root, distance, 5)
    flat = torch.block_diag(*root)

    def evidence(scale):
        inside = torch.eye(12).double() + scale * flat.T @ kernel @ flat
        return -0.5 * distance / scale - 0.5 * float(torch.logdet(inside))

    near = [evidence(found * factor) for factor in (0.9, 1.0, 1.1)]
    assert near[1] == max(near)
    for short in (1e-2, 1e-5):  # far below what the labels determine: the step must not swing
        scale = scale_at(kernel, root, short, 5)
        values = torch.linalg.eigvalsh(flat.T @ kernel @ flat).clamp(min=0)
        determined = float((scale * values / (1 + scale * values)).sum())
        assert scale == pytest.approx(short / determined, rel=1e-4)


def test_only_cheap_layers_of_a_large_network_move(monkeypatch):
    monkeypatch.setattr(around_module, "SMALL", 0)
    part = build("resnet8", classes=4, size=16)
    at = late_point(front_of(part).part, torch.zeros(1, 3, 16, 16))
    assert at is None or at.startswith("layer")
    x = torch.rand(12, 3, 16, 16)
    placed = place(
        front_of(part),
        x,
        torch.arange(12) % 3,
        ("a", "b", "c"),
        movable={name for name, _ in part.module.named_parameters()},
    )
    before = dict(front_of(part).part.module.named_parameters())
    early = [name for name in placed.moved if "stem" in name or "layer1" in name]
    assert early == []
    assert any(name.startswith("1.head") for name in placed.moved)
    assert len(before) > len(placed.moved) - 2


def test_numbers_are_places_only_in_a_head_of_as_many_outputs(low):
    task = dt.load_task("digits[0,1,2,3,4]")
    x, y = few(task, 6, seed=1).subset("train")
    found = LinearizedClassifier(low).fit(x, y.numpy())
    new, truth = task.subset("test")
    whole = dt.evaluate(low, task).measures["accuracy"]
    assert found.score(new, truth.numpy()) >= whole - 0.02  # what its own head knows is kept


def test_features_that_tell_nothing_are_told():
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 4)).astype("float32"), draw.integers(0, 4, 40)
    blind = build("mlp", shape=(4,), hidden=(6,), classes=2)
    with pytest.warns(UserWarning, match="hardly tell the classes apart"):
        LinearizedClassifier(blind).fit(x, y)


@pytest.mark.filterwarnings("error")
def test_probabilities_near_uniform_are_told(low):
    (x, y), _, _ = high(4)
    LinearizedClassifier(low).fit(x, y.numpy())
    LinearizedClassifier(low, around="start").fit(x, y.numpy())
    with pytest.warns(UserWarning, match=r"of the labels fitted to even.*by guessing 20\.0%"):
        drowned = LinearizedClassifier(low, around="start", prior=1e-9).fit(x, y.numpy())
    said = drowned.predict_proba(x)
    entropy = -(said * np.log(said)).sum(1).mean()
    assert entropy > 0.95 * np.log(5)


def test_unknown_places_are_refused(low):
    (x, y), _, _ = high(2)
    with pytest.raises(SettingsError, match="around is one of auto, head, again, start"):
        LinearizedClassifier(low, around="there").fit(x, y.numpy())


def test_folds_are_averaged_where_they_hold_every_label(low, monkeypatch):
    (x, y), _, _ = high(6)
    front, classes = front_of(low), 5
    seen = []
    whole = guarded_module._mean_of
    monkeypatch.setattr(
        guarded_module, "_mean_of", lambda fronts: seen.append(len(fronts)) or whole(fronts)
    )

    def free(one):
        one.part.module.requires_grad_(True)
        return True

    def run(**asked):
        moves = Moves(6, 16, 3e-3)
        return guarded_module.tuned_if_better(front, x, y, classes, moves, free=free, **asked)

    mean, last = run(averaged=True, stops=1), run(stops=1)
    assert mean.losses[0] == last.losses[0]  # of the same folds
    assert mean.losses[6] == pytest.approx(last.losses[6], rel=0.2)  # heads of other penalties
    assert mean.chosen == last.chosen == "fine-tuned"
    assert seen == [3]
    start, near, far = (
        torch.cat([p.detach().flatten() for p in each.part.module.parameters()])
        for each in (front, mean.front, last.front)
    )
    way, other = near - start, far - start
    # Near its start the network is linear: the mean of the folds goes the way that all labels go.
    assert float(way @ other / (way.norm() * other.norm())) > 0.5
    ends = []
    for share in (1.0, 0.5, 0.0):  # of the weights' way; none of it is the head alone
        monkeypatch.setattr(guarded_module, "_share", lambda *told, share=share: share)
        some = run(averaged=True, stops=1)
        weights = torch.cat([p.detach().flatten() for p in some.front.part.module.parameters()])
        ends.append(weights)
        torch.testing.assert_close(weights, torch.lerp(start, ends[0], share))
        assert (some.chosen, some.share) == (("fine-tuned", share) if share else ("probe", 1.0))
    monkeypatch.setattr(guarded_module, "ENOUGH", 10)  # one fold decides, and is not all labels
    seen.clear()
    run(averaged=True, stops=1)
    assert seen == []


def test_the_share_of_moved_layers_is_the_best_of_a_slow_search():
    draw = torch.Generator().manual_seed(0)
    codes = torch.arange(60) % 3
    for noise in (0.5, 1.0, 2.0):
        without, moved = (
            nn.functional.one_hot(codes, 3) + scale * torch.randn(60, 3, generator=draw).double()
            for scale in (1.0, noise)
        )

        def loss(share, pair=(without, moved)):
            both = (1 - share) * pair[0] + share * pair[1]
            heats = torch.logspace(-2, 2, 400, dtype=torch.float64)
            return min(float(nn.functional.cross_entropy(both / heat, codes)) for heat in heats)

        best = min((0.0, *guarded_module.SHARES), key=loss)
        assert loss(guarded_module._share(without, moved, codes, loss(0.0))) < loss(best) + 0.005
