"""One look into a part, in Python and at the command line, and what can go wrong with it."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from cli.console import call
from torch import nn

import dovetail as dt
from dovetail.cli.main import main
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.lens import deviation, inspect, profile
from dovetail.lens.inspection import _TAKES
from dovetail.lens.inspection_head import headed, weights_of_the_head
from dovetail.lens.inspection_plan import Pace, _timed, expected_seconds
from dovetail.measure.forward import outputs_of
from dovetail.settings.inspect import LOOKS, USUAL
from dovetail.tasks.derive import only_classes

DIGITS = dt.load_task("digits")
QUICK = {"samples": 60, "k": 3, "show": False}


@pytest.fixture(scope="module")
def start():
    return dt.build("lenet5", channels=1, size=8, classes=10)


@pytest.fixture(scope="module")
def trained(start):
    return dt.train.end_to_end(start, DIGITS, epochs=2, show=False).part


def test_the_usual_looks_are_those_of_the_functions(trained, start):
    seen = inspect(trained, DIGITS, start, **QUICK)
    assert [look.name for look in seen.looks] == list(USUAL)
    assert [offer.name for offer in seen.offers] == ["landscape", "hessian", "study", "theory"]
    n = DIGITS.size("train")
    assert seen.look("deviation").total == deviation(trained, start, examples=n).total
    assert seen.look("profile").n == seen.n == 60
    assert "it was trained on them" in seen.answer
    assert seen.head == "its own head"


def test_the_examples_run_through_the_network_once(trained, monkeypatch):
    """Profile, head and its curvature share a pass; gradients are of few examples."""
    seen = []
    trained.module.conv1.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    monkeypatch.setattr("dovetail.lens.inspection.GRADIENTS", 16)
    monkeypatch.setattr("dovetail.lens.inspection_plan._TIMED", 0)
    looked = inspect(trained, DIGITS, samples=400, k=3, show=False)
    trained.module.conv1._forward_hooks.clear()
    assert sum(seen) <= 400 + 16 + 100  # cuts are traced, and offers timed, with few
    alone = inspect(trained, DIGITS, samples=400, what=["curvature"], show=False)
    shared, own = (each.look("curvature").eigenvalues for each in (looked, alone))
    assert shared == pytest.approx(own, rel=1e-4)
    assert looked.accuracy == alone.accuracy
    assert looked.left_out == pytest.approx(alone.left_out, abs=0.01)


def test_the_curvature_of_the_last_layer_is_the_block_of_the_whole(trained):
    seen = inspect(trained, DIGITS, what=["curvature"], **QUICK)
    by_name = inspect(trained, DIGITS, what=["curvature"], module="head", **QUICK)
    assert seen.look("curvature").eigenvalues[:5] == pytest.approx(
        by_name.look("curvature").eigenvalues[:5], rel=1e-2
    )


def test_a_part_that_does_not_know_the_classes_gets_a_linear_head(trained):
    other = dt.Task(
        DIGITS.inputs[:200], [str(int(y) % 3) + "!" for y in DIGITS.targets[:200]], name="thirds"
    )
    front, _ = dt.cut(trained, at="conv2")
    for part in (trained, front):
        made = headed(part, other, seed=0)
        assert not made.own
        assert made.whole.contract.classes == other.classes
        whole = outputs_of(made.whole, other.subset("train")[0])
        torch.testing.assert_close(made.back(made.features).detach(), whole, rtol=1e-3, atol=1e-3)
        assert "linear head" in inspect(part, other, what=["curvature"], **QUICK).head


def test_nothing_is_changed(trained):
    before = copy.deepcopy(trained.module.state_dict())
    trained.module.train()
    inspect(trained, DIGITS, **QUICK)
    assert trained.module.training
    assert all(torch.equal(v, before[k]) for k, v in trained.module.state_dict().items())
    assert all(p.requires_grad for p in trained.module.parameters())


def test_without_a_task_there_are_weights(trained):
    seen = inspect(trained)
    assert not seen.looks
    assert [weight.name for weight in seen.weights][-1] == "head.weight"
    assert "Name a task" in seen.answer


def test_a_plan_looks_at_nothing(trained):
    seen = inspect(trained, DIGITS, plan=True, **QUICK)
    assert not seen.looks
    assert {offer.name for offer in seen.offers} == set(_TAKES)
    assert all(offer.seconds > 0 for offer in seen.offers if offer.name != "deviation")


def test_a_plan_knows_the_size_of_the_head(trained):
    """The curvature of ten outputs is not planned as that of a thousand; a fit is paid for."""
    rows, labels = torch.rand(60, 20), torch.arange(60) % 3
    task = dt.Task(rows, labels)
    sample = task.derived("few", indices={"train": torch.arange(40)})
    net = dt.build("mlp", shape=(20,), hidden=(8,), classes=3)
    own = net.changed(contract=replace(net.contract, classes=task.classes))
    assert weights_of_the_head(own, sample) == 8 * 3 + 3
    others = net.changed(contract=replace(net.contract, classes=("a", "b", "c")))
    assert weights_of_the_head(others, sample) == 2 * 8 * 3
    pace = Pace(0.001, 0.004, 0.01, 1000)
    few, many = (expected_seconds("curvature", pace, 500, last=w) for w in (1_300, 1_300_000))
    assert few < 0.2 < 30 < many


def test_the_quickest_of_several_runs_counts(monkeypatch):
    """Whatever else the machine did meanwhile made the others slower."""
    ticks = iter([0, 9, 10, 11, 20, 20.5, 30, 33, 40, 44])
    monkeypatch.setattr("dovetail.lens.inspection_plan.time.thread_time", lambda: next(ticks))
    monkeypatch.setattr("dovetail.lens.inspection_plan._LONGEST", 100)
    assert _timed(lambda: None, torch.zeros(1)) == 0.5


def test_everything_there_is_data_for(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(_TAKES, "study", lambda room: profile(room.part, room.sample, k=3))
    seen = inspect(trained, DIGITS, source=DIGITS, all=True, **QUICK)
    names = [look.name for look in seen.looks]
    assert names == [name for name in LOOKS if name != "deviation"]
    assert load_record(seen.save(tmp_path / "seen.json")) == seen


def test_an_interrupt_leaves_what_was_seen(trained, monkeypatch):
    def interrupted(room):
        raise KeyboardInterrupt

    monkeypatch.setitem(_TAKES, "curvature", interrupted)
    seen = inspect(trained, DIGITS, **QUICK)
    assert [look.name for look in seen.looks] == ["profile"]
    assert seen.stopped == "curvature"
    with pytest.raises(KeyboardInterrupt):
        inspect(trained, DIGITS, what=["curvature"], **QUICK)


def test_numbers_have_curvature(tmp_path):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    task = dt.Task(x, x.sum(1), kind="regression", name="sum")
    seen = inspect(dt.build("mlp", shape=(3,), classes=1), task, **QUICK)
    assert [look.name for look in seen.looks] == ["curvature", "gradients"]
    assert seen.look("curvature").first > 0


def nan_net():
    net = dt.build("lenet5", channels=1, size=8, classes=10)
    nn.init.constant_(net.module.conv1.conv.weight, float("nan"))
    return net


def test_mistakes_are_told(trained, start):
    other = dt.build("mlp", shape=(4,), classes=2)
    _, head = dt.cut(trained, at="conv2")
    for wrong, error, said in (
        (lambda: inspect(head, DIGITS), ContractError, "features of another part"),
        (lambda: inspect(other, DIGITS), DovetailError, "4"),
        (lambda: inspect(trained, DIGITS, other), ContractError, "share no layer"),
        (lambda: inspect(trained, what=["profile"]), SettingsError, "profile needs task"),
        (lambda: inspect(trained, DIGITS, what=["x"]), SettingsError, "unknown what 'x'"),
        (lambda: inspect(trained, DIGITS, module="conv9"), SettingsError, "conv9"),
        (lambda: inspect(trained, DIGITS, samples=5), TaskError, "k=10"),
        (lambda: inspect(nan_net(), DIGITS, show=False), DovetailError, "NaN"),
    ):
        with pytest.raises(error, match=said):
            wrong()


def test_the_command(trained, start, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shelf = dt.Shelf("shelf")
    shelf.add(trained, "net")
    shelf.add(start, "start")
    words = ["inspect", "net", "digits", "--before", "start", "--samples", "60", "--k", "3"]
    said = call(capsys, *words, "--json", "--report", "page.html", "--record", "kept").json
    assert [look["name"] for look in said["looks"]] == list(USUAL)
    assert [offer["how"] for offer in said["offers"]][-1] == "--source TASK"
    assert (tmp_path / "page.html").stat().st_size > 10_000
    (file,) = (tmp_path / "kept").iterdir()
    assert load_record(file).kind == "inspection"
    assert "What more there is to see" in call(capsys, *words).out
    assert "--what hessian" in call(capsys, "inspect", "net", "digits", "--plan").out


def test_the_command_over_epochs(tmp_path, capsys, monkeypatch):
    """The networks of kept epochs side by side, in their order, without heads and other parts."""
    monkeypatch.chdir(tmp_path)
    words = "digits", "--net", "mlp", "--epochs", 2, "--keep-epochs", 1, "--name", "net"
    call(capsys, "train", *words)
    shelf = dt.Shelf("shelf")
    shelf.add(dt.cut(shelf.get("net"), at="hidden1")[1], "net.epochs-head")
    words = ["inspect", "net.epoch*", "digits", "--samples", "60", "--k", "3"]
    said = call(capsys, *words, "--json", "--report", "page.html").json
    assert said["names"] == ["net.epoch01", "net.epoch02"]
    assert [each["data"]["epoch"] for each in said["profiles"]] == [1, 2]
    assert (tmp_path / "page.html").stat().st_size > 10_000
    for more, wrong in (
        (["--before", "net"], "--before means nothing for several parts"),
        (["--what", "profile"], "--what means nothing"),
    ):
        told = call(capsys, *words, *more)
        assert (told.code, wrong in told.err) == (2, True)
    assert "need a task" in call(capsys, "inspect", "net.epoch*").err
    assert "begins with 'x'" in call(capsys, "inspect", "x*", "digits").err


@pytest.fixture(scope="module")
def shelved(trained, tmp_path_factory):
    """A shelf with parts that suit the digits and parts that do not, and tasks of bad luck."""
    folder = tmp_path_factory.mktemp("inspect")
    shelf = dt.Shelf(folder / "shelf")
    front, head = dt.cut(trained, at="conv2")
    parts = {
        "net": trained,
        "front": front,
        "head": head,
        "nan": nan_net(),
        "other": dt.build("mlp", shape=(4,), classes=2),
    }
    for name, part in parts.items():
        shelf.add(part, name)
    x = np.zeros((30, 1, 8, 8), "float32")
    np.savez(folder / "one.npz", x=x, y=np.array(["a"] * 30))
    np.savez(folder / "nan.npz", x=np.full_like(x, np.nan), y=np.array(["a", "b"] * 15))
    np.savez(folder / "flat.npz", x=x[:, 0, 0], y=np.array(["a", "b"] * 15))
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("net digits --module conv9", "conv9"),
        ("net digits --module conv9 --what landscape", "conv9"),
        ("net digits --before other", "share no layer"),
        ("net digits --before nobody", "nobody"),
        ("net digits --samples 5", "k=10"),
        ("net digits --k 500", "k=500"),
        ("net digits --what weather", "weather"),
        ("net --what profile", "profile needs"),
        ("net --what gradients", "gradients needs"),
        ("net digits --what theory", "theory needs --source"),
        ("net digits --report page.xyz", "xyz"),
        ("head digits", "join it to its front"),
        ("other digits", "4"),
        ("nan digits", "NaN"),
        ("nan digits --what gradients", "NaN"),
        ("net one.npz", "class"),
        ("net nan.npz", "NaN"),
        ("net flat.npz", "8"),
    ],
)
def test_a_mistake_is_one_line(words, said, shelved, capsys, monkeypatch):
    monkeypatch.chdir(shelved)
    assert main(["inspect", *words.split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert said in error


def test_a_part_without_a_head_is_looked_into_with_a_linear_one(shelved, capsys, monkeypatch):
    monkeypatch.chdir(shelved)
    said = call(capsys, "inspect", "front", "digits", "--samples", "60", "--k", "3", "--json").json
    assert [look["name"] for look in said["looks"]] == ["profile", "curvature", "gradients"]
    assert "linear head" in said["head"]


def test_one_class_is_refused(trained):
    task = only_classes(DIGITS, ["0", "1"])
    one = task.derived("zeros", classes=("0",))
    with pytest.raises(TaskError, match="one class"):
        inspect(trained, one)
