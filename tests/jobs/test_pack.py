"""Packing a part: what decides the bits, what is measured, what the origin keeps."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from dovetail.closed_form.estimators import PlatonicClassifier
from dovetail.core.errors import FormatError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.core.views import Figure, Table
from dovetail.jobs.pack import pack, pack_all, unpack, unpack_all
from dovetail.measure.evaluate import evaluate
from dovetail.pack.compressing import write
from dovetail.pack.searching import Rise
from dovetail.parts.builders import builder
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.part import build
from dovetail.reuse.pack_agreement import ExpectedPoints
from dovetail.reuse.pack_losses import gradient_sizes, losses_with
from dovetail.reuse.packing import pack_part
from dovetail.shelf.store import Shelf
from dovetail.tasks.derive import only_classes
from dovetail.tasks.load import load_task
from dovetail.tasks.pairs import Pairs
from dovetail.tasks.task import Task
from dovetail.train.end_to_end import end_to_end


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


@pytest.fixture(scope="module")
def trained(digits):
    return end_to_end(build("mlp", hidden=(64,), classes=10), digits, epochs=8, seed=0).part


def test_what_is_measured_is_in_the_record_and_the_origin(trained, digits, tmp_path):
    small, record, _ = pack_part(trained, digits, name="net")
    assert record.before == evaluate(trained, digits).measures
    assert record.after == evaluate(small, digits).measures
    assert abs(record.after["accuracy"] - record.before["accuracy"]) < 0.02
    origin = small.origin
    assert (origin.how, origin.parents, origin.task) == ("pack", (trained.digest,), "digits")
    assert origin.measured["test accuracy"] == record.after["accuracy"]
    assert origin.measured["test accuracy before"] == record.before["accuracy"]
    assert origin.measured["packed bytes"] == len(small.packed) == record.size
    plain = sum(t.numel() * t.element_size() for t in trained.module.state_dict().values())
    assert record.ratio == pytest.approx(plain / len(small.packed))
    assert small.contract == trained.contract
    assert load_record(record.save(tmp_path / "r.json")) == record
    assert "before" in str(record.view())


def test_without_a_task_nothing_is_claimed(trained):
    small, record, _ = pack_part(trained)
    assert (record.before, record.after, record.task) == ({}, {}, None)
    assert set(small.origin.measured) == {"packed bytes", "ratio"}
    assert small.origin.task == trained.origin.task


@builder("test/weightless")
def weightless() -> torch.nn.Module:
    return torch.nn.Flatten()


def test_a_part_without_weights_has_nothing_to_pack(trained, tmp_path):
    part = adopt(weightless(), example=torch.zeros(1, 2, 3))
    with pytest.raises(SettingsError, match="has no weights; there is nothing to pack"):
        pack_part(part)
    shelf = Shelf(tmp_path)
    shelf.add(part, "a")
    shelf.add(trained, "b")
    outcome = pack_all(shelf=tmp_path)
    found = [(row["part"], row["to"], row["why_not"]) for row in outcome.data["parts"]]
    assert found == [("a@1", None, "without weights"), ("b@1", "b-packed@1", None)]
    assert outcome.ok


def test_an_error_of_others_does_not_stop_a_whole_shelf(trained, tmp_path, monkeypatch):
    for name in ("a", "b"):
        Shelf(tmp_path).add(trained, name)
    pack_all(shelf=tmp_path)

    def unlucky(self, part, name, **more):
        if name.startswith("a"):
            raise MemoryError
        return add(self, part, name, **more)

    add = Shelf.add
    monkeypatch.setattr(Shelf, "add", unlucky)
    outcome = unpack_all(shelf=tmp_path)
    found = {row["part"]: row["to"] for row in outcome.data["parts"] if "packed" in row["part"]}
    assert found == {"a-packed@1": None, "b-packed@1": "b-packed-unpacked@1"}
    assert not outcome.ok


def test_a_half_can_be_packed(trained):
    front, _ = cut(trained, at="hidden1")
    assert pack_part(front).part.contract == front.contract


def test_more_bits_cost_more_and_lose_less(trained, digits):
    found = [pack_part(trained, digits, bits=bits).record for bits in (2, 4, 8)]
    assert found[0].size < found[1].size < found[2].size
    full = evaluate(trained, digits).measures["nll"]
    losses = [abs(record.after["nll"] - full) for record in found]
    assert losses[0] > losses[1] > losses[2]


@pytest.mark.parametrize("budget", [0.002, 0.05])
def test_a_loss_budget_is_kept_on_the_validation_split(trained, digits, budget):
    small, record, _ = pack_part(trained, digits, loss_budget=budget)
    full = evaluate(trained, digits, split="validation").measures["nll"]
    assert evaluate(small, digits, split="validation").measures["nll"] <= full + budget
    assert record.ratio > pack_part(trained).record.ratio


def test_tied_weights_within_a_budget():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    torch.manual_seed(0)
    task = Task(torch.rand(60, 32), torch.rand(60, 32), kind="regression", name="numbers")
    part = adopt(Tied(), example=torch.zeros(1, 32))
    small, _, search = pack_part(part, task, loss_budget=0.05)
    bits = {tensor.name: tensor.bits for tensor in search.tensors}
    assert bits["a.weight"] == bits["b.weight"] is not None
    assert small.module.a.weight is small.module.b.weight


def test_points_are_expected_and_counted_on_the_validation_split(trained, digits):
    small, _, search = pack_part(trained, digits, points=1.0)
    points = ExpectedPoints(trained, digits)
    before = points(trained.module.state_dict())
    rise = Rise.between(before.numpy(), points(small.module.state_dict()).numpy(), search.margin)
    assert (search.rise, search.most) == pytest.approx((rise.mean, rise.most))
    assert rise.most <= 1.0
    full, left = (evaluate(p, digits, split="validation").accuracy for p in (trained, small))
    assert search.counted == pytest.approx(100 * (full - left))


def test_the_same_seed_gives_the_same_container(trained):
    assert pack_part(trained).part.packed == pack_part(trained).part.packed


def test_packed_again_it_is_packed_from_the_packed_one(trained, digits):
    once = pack_part(trained, bits=6).part
    twice, record, _ = pack_part(once, bits=6)
    assert twice.origin.parents == (once.digest,)
    assert record.given == len(once.packed)
    for name, tensor in once.module.state_dict().items():  # as many levels: nothing changes
        torch.testing.assert_close(twice.module.state_dict()[name], tensor, rtol=0, atol=1e-6)
    assert {tensor.levels for tensor in pack_part(trained, levels=23).record.tensors} == {None, 23}
    assert record.summary.endswith(f"{record.ratio:.2f} times smaller than plain.")
    finer = pack_part(once, bits=10).record
    times = finer.size / len(once.packed)
    assert f"is {times:.2f} times larger than it was packed before" in finer.summary
    search = pack_part(once, digits, loss_budget=0.5).search
    times = len(once.packed) / search.size
    assert search.summary.startswith(f"{times:.2f} times smaller than it was packed before")
    with torch.no_grad():
        once.module.head.bias += 1
    assert pack_part(once).record.given is None  # the container no longer is what was given


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"rule": "entropi"}, "did you mean entropy"),
        ({"rule": "entropy", "bits": 4}, "both decide the bits"),
        ({"bits": 4, "points": 1.0}, "both decide the bits"),
        ({"bits": 4, "levels": 9}, "both decide the bits"),
        ({"rule": "gradient"}, "needs a task"),
        ({"points": 1.0}, "needs a task"),
        ({"margin": 1.0}, "give loss_budget or points"),
        ({"bits": 4, "margin": 2.576}, "give loss_budget or points"),
    ],
)
def test_options_that_contradict(trained, asked, told):
    with pytest.raises(SettingsError, match=told):
        pack_part(trained, **asked)


def test_numbers_have_no_points_but_a_loss():
    torch.manual_seed(0)
    task = Task(torch.rand(60, 4), torch.rand(60, 1), kind="regression", name="numbers")
    part = build("mlp", shape=(4,), hidden=(64,), classes=1)
    with pytest.raises(TaskError, match="give a loss budget"):
        pack_part(part, task, points=1.0)
    assert pack_part(part, task, loss_budget=0.1).record.after["mse"] >= 0


def test_pairs_have_no_loss():
    ends = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    pairs = Pairs(*ends, torch.tensor([True, False, True]))
    task = Task(torch.rand(60, 1, 8, 8), kind="pairs", pairs=pairs)
    with pytest.raises(TaskError, match="pair labels only"):
        gradient_sizes(build("mlp"), task)
    with pytest.raises(TaskError, match="pair labels only"):
        pack_part(build("mlp"), task)


def test_losses_are_those_that_are_evaluated(trained, digits):
    some = only_classes(digits, ["7", "2", "5"])
    state = trained.module.state_dict()
    found = evaluate(trained, some, split="validation").measures
    losses = losses_with(trained, some)(state)
    assert losses.shape == (some.size("validation"),)
    assert float(losses.mean()) == pytest.approx(found["nll"])
    mistakes = losses_with(trained, some, points=True)(state)
    assert float(mistakes.mean()) == pytest.approx(100 * (1 - found["accuracy"]))


@pytest.mark.parametrize(
    ("kind", "targets", "measure"),
    [
        ("multilabel", (torch.rand(60, 3) > 0.5).float(), "nll"),
        ("regression", torch.rand(60, 3), "mse"),
    ],
)
def test_losses_of_labels_and_numbers(kind, targets, measure):
    task = Task(torch.rand(60, 4), targets, kind=kind, name="some")
    part = build("mlp", shape=(4,), hidden=(16,), classes=3)
    found = evaluate(part, task, split="validation").measures[measure]
    losses = losses_with(part, task)(part.module.state_dict())
    assert float(losses.mean()) == pytest.approx(found)
    assert set(gradient_sizes(part, task)) == set(dict(part.module.named_parameters()))


# Scores that least squares fitted ----------------------------------------------------------------


def solved(task):
    x, y = task.subset("train")
    names = [task.classes[label] for label in y]
    return PlatonicClassifier((60,), random_state=0).fit(x, names).to_part(torch.float32)


def from_targets(part, task, split):
    """One example at a time: how far the scores are from what they were fitted to."""
    found = []
    for x, y in zip(*task.subset(split), strict=True):
        outputs = part.module(x[None].float())[0]
        scores = (outputs * part.origin.settings["temperature"]).tolist()
        wanted = part.contract.classes.index(task.classes[y])
        if len(scores) == 2:
            found.append((scores[1] - scores[0] - (1.0, -1.0)[wanted == 0]) ** 2)
        else:
            found.append(sum((s - (c == wanted)) ** 2 for c, s in enumerate(scores)))
    return sum(found) / len(found)


@pytest.mark.parametrize("classes", [["3", "1"], ["7", "2", "5"]])
def test_the_loss_of_scores_is_their_distance_from_the_targets(digits, classes):
    task = only_classes(digits, classes)
    part = solved(task)
    losses = losses_with(part, task)(part.module.state_dict())
    assert float(losses.mean()) == pytest.approx(from_targets(part, task, "validation"), rel=1e-4)
    assert float(losses.mean()) < 0.2
    record = pack_part(part, task).record
    name = "squared error of the scores"
    assert record.before[name] == pytest.approx(from_targets(part, task, "test"), rel=1e-4)
    assert record.after[name] != record.before[name]


def test_a_loss_budget_protects_a_part_that_was_solved_for(digits):
    part = solved(digits)
    small, record, search = pack_part(part, digits, loss_budget=0.1)
    assert record.before["accuracy"] - record.after["accuracy"] < 0.06
    assert record.ratio > 8
    assert search.loss == record.settings["loss"] == "squared error of the scores"
    assert "the loss (squared error of the scores) rises by" in search.summary
    rise = from_targets(small, digits, "validation") - from_targets(part, digits, "validation")
    assert rise == pytest.approx(search.rise, rel=1e-3)
    assert pack_part(small, digits, loss_budget=0.1).search.loss == search.loss  # it is known still


def test_the_gradient_of_scores(digits):
    task = only_classes(digits, ["7", "2", "5"])
    part = solved(task)
    found = gradient_sizes(part, task)["hidden1.linear.weight"]
    x, y = task.subset("train")
    wanted = F.one_hot(torch.tensor([part.contract.classes.index(task.classes[i]) for i in y]))
    scores = part.module(x.float()) * part.origin.settings["temperature"]
    loss = (scores - wanted).square().sum() / len(x)
    (slope,) = torch.autograd.grad(loss, part.module.hidden1.linear.weight)
    assert found == pytest.approx(float(slope.square().mean().sqrt()), rel=1e-3)
    settings = pack_part(part, task, rule="gradient").record.settings
    assert settings["loss"] == "squared error of the scores"


# What is told ------------------------------------------------------------------------------------


def test_a_budget_is_told_in_its_own_unit(trained, digits, tmp_path):
    search = pack_part(trained, digits, points=4.0).search
    assert (search.loss, search.budget) == ("points of accuracy", 4.0)
    assert "the accuracy is expected to fall by" in search.summary
    assert "of 4 allowed" in search.summary
    assert f"on {digits.size('validation')} validation examples" in search.summary
    assert "loss" not in search.summary
    assert "points" in search.view()[-1].y_label
    assert load_record(search.save(tmp_path / "s.json")) == search
    told = pack_part(trained, digits, loss_budget=0.05).search.summary
    assert "the loss (cross-entropy in nats) rises by" in told


def test_what_cannot_be_counted_is_noted(trained, digits):
    record = pack_part(trained, digits, points=0.1).record
    assert record.ratio > 3  # far more than exact: what is expected resolves it
    assert "0.1 points cannot be counted on 180 validation examples" in record.note
    assert "2,574 of which none changes" in record.note  # 2.576 / 2576 are 0.1 points
    assert record.view()[-1].text == record.brief()[-1].text == record.note
    assert pack_part(trained, digits, points=4.0).record.note == ""


def test_a_budget_of_nothing_keeps_everything(trained, digits):
    record = pack_part(trained, digits, points=0.0).record
    assert "cannot tell a rise as small as the budget from chance" in record.note
    assert {tensor.levels for tensor in record.tensors} == {None}


def test_more_lost_than_expected_is_noted(trained, digits):
    search = pack_part(trained, digits, points=1.0).search
    assert "More is lost than was expected" not in search.note
    worse = dataclasses.replace(search, counted=9.0, counted_error=2.0)
    assert "More is lost than was expected: 9 ± 2 points" in worse.note


def test_a_terminal_shows_the_largest_tensors_and_the_record_all():
    part = build("mlp", shape=(32,), hidden=(32,) * 12, classes=10)
    record = pack_part(part, bits=4).record
    full, brief = (
        next(block for block in view if isinstance(block, Table))
        for view in (record.view(), record.brief())
    )
    assert len(full.rows) == 14  # a row a matrix, and one for all vectors
    *largest, others = brief.rows
    assert others[0] == "8 more rows, in --json and the record"
    sizes = sorted((row[6] for row in full.rows), reverse=True)
    assert [row[6] for row in largest] == sizes[:6]
    assert sum(row[6] for row in brief.rows) == sum(sizes)
    assert not any(isinstance(block, Figure) for block in record.brief())


def test_flattened_tensors_are_named_for_a_part_and_a_shelf(trained, tmp_path):
    flat = copy.deepcopy(trained)
    with torch.no_grad():
        flat.module.hidden1.linear.weight[0, 0] = 1e5
    record = pack_part(flat).record
    assert record.weights.crowded == ("hidden1.linear.weight",)
    assert "went to one level" in record.view()[-1].text
    for part, name in ((flat, "flat"), (trained, "fine")):
        Shelf(tmp_path).add(part, name)
    outcome = pack_all(shelf=tmp_path)
    assert outcome.data["crowded"] == {"flat": ["hidden1.linear.weight"]}
    (warning,) = (block.text for block in outcome.view if getattr(block, "style", "") == "warning")
    assert warning.startswith("flat: Nearly all weights of 'hidden1.linear.weight'")
    assert pack_all(shelf=tmp_path, to=tmp_path / "other", channels=True).data["crowded"] == {}


# The gradient ------------------------------------------------------------------------------------


def by_hand(part, task):
    """One example at a time: the gradient of the mean loss over the whole training split."""
    module = copy.deepcopy(part.module).double().eval()
    sums = {name: torch.zeros_like(w) for name, w in module.named_parameters()}
    rows = task.indices("train")
    how = part.contract.preprocess
    for row in rows:
        x = task.inputs[row : row + 1].double()
        if how is not None:
            x = (x - how.mean[0] / how.scale) * how.scale / how.std[0]
        module.zero_grad()
        known = part.contract.classes
        target = known.index(task.classes[task.targets[row]])
        F.cross_entropy(module(x), torch.tensor([target])).backward()
        for name, weight in module.named_parameters():
            sums[name] += weight.grad / len(rows)
    return {name: float(g.square().mean().sqrt()) for name, g in sums.items()}


def test_gradients_match_one_example_at_a_time(trained, digits):
    few = only_classes(digits, ["7", "2"])
    digest = trained.digest
    found = gradient_sizes(trained, few, batch_size=50)
    assert found == pytest.approx(by_hand(trained, few), rel=1e-3)
    assert trained.digest == digest


def test_the_gradient_rule_follows_the_gradient(trained, digits):
    steep = {"hidden1.linear.weight": 1000.0, "head.weight": 0.0}
    record = pack_part(trained, digits, rule="gradient", extra_bits=4).record
    assert record.settings["rule"] == "gradient"
    bits = {row.name: row.bits for row in record.tensors}
    sizes = gradient_sizes(trained, digits)
    for name in steep:
        assert bits[name] == 4 + int(torch.tensor(sizes[name] + 1).log2().ceil())


def test_the_source_is_never_replaced(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file({"w": torch.randn(40, 40)}, file)
    before = file.read_bytes()
    with pytest.raises(FormatError, match="is what is read"):
        pack(str(file), to=file, replace=True)
    assert file.read_bytes() == before
    packed = tmp_path / "w.dovepack"
    pack(str(file), to=packed)
    before = packed.read_bytes()
    with pytest.raises(FormatError, match="is what is read"):
        unpack(str(packed), to=packed, replace=True)
    assert packed.read_bytes() == before


def test_a_pattern_that_protects_nothing_is_refused(tmp_path):
    file = tmp_path / "w.safetensors"
    save_file({"head.weight": torch.randn(40, 40)}, file)
    with pytest.raises(SettingsError, match="no tensor matches"):
        pack(str(file), lossless=("haed.*",))
    assert not (tmp_path / "w.dovepack").exists()
    with pytest.raises(SettingsError, match="no tensor matches"):
        pack_part(build("mlp"), lossless=("haed.*",))


@pytest.mark.parametrize("most", [float("nan"), float("inf"), -1.0, 0.0])
def test_a_limit_that_is_none_is_refused(tmp_path, most):
    file = tmp_path / "w.dovepack"
    write(file, {"w": torch.randn(4, 4)})
    with pytest.raises(SettingsError, match="most_gigabytes must be"):
        unpack(str(file), most_gigabytes=most)
