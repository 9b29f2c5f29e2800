"""The uses from the shelf's side: the right parts are found, judged on test, shelved and kept."""

from __future__ import annotations

import numpy as np
import pytest
from cli.console import call

from dovetail.core.errors import ContractError, SettingsError, ShelfError, TaskError
from dovetail.jobs.frame import RUNS, net_for
from dovetail.jobs.reuse import devices, domain, extend, replace, transfer
from dovetail.jobs.train import train
from dovetail.parts.joining import join
from dovetail.reuse.devices import shared_head
from dovetail.reuse.domain import adapt_domain, judge_adaptation
from dovetail.reuse.extension import extend_classes
from dovetail.reuse.judged_extension import judge_extension
from dovetail.reuse.judged_replacement import judge_replacement
from dovetail.reuse.replacement import replace_front
from dovetail.reuse.transfer import transfer as try_fronts
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.train import group

FEW = {"epochs": 2, "batch_size": 16}
NET = {"hidden": [8, 6], "norm": "batch"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reused")
    y = np.arange(160) % 4
    x = np.random.default_rng(0).random((160, 1, 8, 8), np.float32) / 4
    x[np.arange(160), 0, y, 2 * y] += 0.7
    np.savez(folder / "dots.npz", x=x, y=y)
    return folder / "dots.npz"


@pytest.fixture(scope="module")
def shelf(data):
    """Two networks that fit, of three of the four classes, with both shared heads."""
    folder = data.parent / "shelf"
    sources = [f"{data}[0,1,2]", f"{data}[0,1,2]~inverted"]
    chosen = {"net": "mlp", "args": NET, "at": ["hidden1"], "name": "pair", "epochs": 3}
    train(sources, how="compatible", shelf=folder, batch_size=16, **chosen)
    return folder


@pytest.fixture(scope="module")
def parts(shelf):
    store = Shelf(shelf)
    return {entry.name: store.get(entry) for entry in store.entries()}


ONE, OTHER = "pair.dots-0-1-2", "pair.dots-0-1-2-inverted"


def kept(shelf, front, head):
    return [
        fit for fit in Shelf(shelf).fits() if (fit.front, fit.head) == (front.digest, head.digest)
    ]


def test_another_domain(shelf, data, parts):
    source = f"{data}[0,1,2]~noise0.2"
    outcome = domain(ONE, source, shelf=shelf, name="noisy", **FEW)
    task, store = load_task(source), Shelf(shelf)
    front, head = parts[f"{ONE}.front"], parts[f"{ONE}.head"]
    fit = adapt_domain(front, parts["pair.rp"], task, head=head, **FEW)
    adapted = store.get("noisy.front")
    assert outcome.data["also"] == ["noisy.front@1"]
    assert adapted.digest == fit.parts[0].digest
    assert store.get("noisy").digest == fit.part.digest
    judged = judge_adaptation(front, adapted, head, task)
    assert outcome.records[1] == judged
    assert outcome.data["gain"] == judged.gain.difference
    (found,) = kept(shelf, adapted, head)
    assert (found.accuracy, found.n) == (judged.gain.after, judged.gain.n)
    assert adapted.origin.measured["test accuracy"] == judged.gain.after
    join(adapted, parts[f"{OTHER}.head"])
    again = domain(ONE, source, shelf=shelf, name="noisy", **FEW)
    assert again.data["ref"] == "noisy@1"


def test_images_whose_labels_nobody_knows_are_adapted_to_and_not_judged(shelf, data):
    outcome = domain(ONE, f"{data}[0,3]", shelf=shelf, name="blind", epochs=1, batch_size=16)
    assert outcome.data["gain"] is None
    assert len(outcome.records) == 1
    assert any("Not judged" in getattr(block, "text", "") for block in outcome.view)


def test_another_front(shelf, data, parts):
    source = f"{data}[0,1,2]"
    chosen = {"args": {"hidden": [12, 5], "norm": "batch"}, "at": "hidden2"}
    outcome = replace(
        ONE, source, net="mlp", auxiliaries=["pair.rp"], shelf=shelf, name="new", **chosen, **FEW
    )
    task, store = load_task(source), Shelf(shelf)
    front, head = parts[f"{ONE}.front"], parts[f"{ONE}.head"]
    fit = replace_front(
        net_for(task, "mlp", chosen["args"]),
        head,
        task,
        old=front,
        at="hidden2",
        auxiliaries={"rp": parts["pair.rp"]},
        **FEW,
    )
    new = store.get("new.front")
    assert new.digest == fit.parts[0].digest
    judged = judge_replacement(front, new, head, task)
    assert outcome.records[1] == judged
    assert {fit.norms: fit.accuracy for fit in kept(shelf, new, head)} == {
        switch.norms: switch.change.after for switch in judged.switches
    }
    assert outcome.data["after"] == judged.change.after
    join(new, store.get(f"{ONE}.head"))
    join(new, parts[f"{OTHER}.head"])


def test_one_head_for_many_devices(tmp_path, data):
    nets, chosen = ["mlp", "mlp"], {"channels": 5, "by": ("dcc", "rp"), "lr": 0.02}
    outcome = devices(
        str(data), nets=nets, args=NET, at=["hidden1", "hidden2"], shelf=tmp_path / "shelf",
        name="kit", **chosen, **FEW,
    )  # fmt: skip
    task, store = load_task(str(data)), Shelf(tmp_path / "shelf")
    models = [net_for(task, "mlp", NET, seed=seed) for seed in (0, 1)]
    fit = shared_head(
        models, task, at=["hidden1", "hidden2"], names=["mlp", "mlp-2"], **chosen, **FEW
    )
    assert sorted(entry.name for entry in store.entries()) == [
        *("kit.head", "kit.mlp", "kit.mlp-2", "kit.mlp-2.front", "kit.mlp.front", "kit.rp")
    ]
    assert store.get("kit.head").digest == fit.heads[0].digest
    for name, front in zip(("mlp", "mlp-2"), fit.fronts, strict=True):
        assert store.get(f"kit.{name}.front").digest == front.digest
        (found,) = kept(tmp_path / "shelf", front, fit.heads[0])
        assert found.accuracy == outcome.data["devices"][name]["accuracy"]
    assert outcome.data["auxiliaries"] == {"rp": "kit.rp@1"}


@pytest.mark.parametrize("moving", [False, True])
def test_more_classes(shelf, data, parts, moving):
    name = f"wider{moving}".lower()
    chosen = {"moving": moving, "norms": "batch"}
    both = [ONE, OTHER]
    outcome = extend(
        f"{ONE}.head", str(data), front=ONE, fronts=both, rp_head="pair.rp" if moving else None,
        shelf=shelf, name=name, **chosen, **FEW,
    )  # fmt: skip
    task, store = load_task(str(data)), Shelf(shelf)
    fronts = {each: parts[f"{each}.front"] for each in both}
    old = parts[f"{ONE}.head"]
    held = {"rp_head": parts["pair.rp"]} if moving else {}
    fit = extend_classes(fronts[ONE], old, task, **held, **chosen, **FEW)
    new = store.get(f"{name}.head")
    assert new.digest == fit.parts[0].digest
    assert outcome.data["classes"] == ["0", "1", "2", "3"]
    if moving:
        fronts |= {f"{name}.front": store.get(f"{name}.front")}
        assert fronts[f"{name}.front"].digest == fit.parts[1].digest
    judged = judge_extension(fronts, old, new, task)
    assert outcome.records[1].after == judged.after
    assert outcome.data["accuracy"] == {each: row.all for each, row in judged.after.items()}
    for each, front in fronts.items():
        assert kept(shelf, front, new)[0].accuracy == judged.after[each].all
    join(parts[f"{OTHER}.front"], new)


def test_without_names_every_front_of_the_space_is_meant(tmp_path, parts, data):
    store = Shelf(tmp_path / "shelf")
    stranger = train(
        f"{data}[0,1,2]", net="mlp", args={"hidden": [8, 6]}, epochs=1, shelf=store.folder, name="s"
    )
    for name in (f"{ONE}.front", f"{OTHER}.front", f"{ONE}.head"):
        store.add(parts[name], name)
    store.add(parts[f"{ONE}.front"], "again.front")  # the same weights under another name
    outcome = transfer(f"{ONE}.head", f"{data}[0,1,2]", epochs=0, shelf=store.folder, name="best")
    assert stranger.data["ref"] not in outcome.data["order"]
    assert len(outcome.data["order"]) == 2
    assert OTHER in outcome.data["order"]


def test_the_quickest_transfer(shelf, data, parts):
    source = f"{data}[0,1,2]"
    outcome = transfer(
        ONE, source, fronts=[ONE, OTHER], steps=(1,), shelf=shelf, name="best", batch_size=16
    )
    task = load_task(source)
    fronts = {each: parts[f"{each}.front"] for each in (ONE, OTHER)}
    fit = try_fronts(fronts, parts[f"{ONE}.head"], task, steps=(1,), batch_size=16)
    assert outcome.data["order"] == list(fit.record.ranked())
    best = Shelf(shelf).get("best")
    assert best.digest == fit.part.digest
    assert best.origin.measured["test accuracy"] == fit.record.of(fit.record.chosen).test[-1]
    for each, front in fronts.items():
        found = [fit.accuracy for fit in kept(shelf, front, parts[f"{ONE}.head"])]
        assert fit.record.of(each).test[0] in found


def test_a_killed_use_goes_on(tmp_path, data, parts, monkeypatch):
    store = Shelf(tmp_path / "shelf")
    for name in (f"{ONE}.front", f"{ONE}.head"):
        store.add(parts[name], name)
    step, calls = group.Group.step, iter(range(100))

    def failing(self, turn):
        if next(calls) == 10:
            raise ZeroDivisionError
        return step(self, turn)

    def run():
        return replace(
            ONE, f"{data}[0,1,2]", net="mlp", args=NET, at="hidden1", shelf=store.folder,
            name="new", checkpoint_seconds=0.0, **FEW,
        )  # fmt: skip

    monkeypatch.setattr(group.Group, "step", failing)
    with pytest.raises(ZeroDivisionError):
        run()
    monkeypatch.undo()
    assert "new" not in store
    assert len(list((tmp_path / RUNS).iterdir())) == 1
    resumed = run()
    assert resumed.data["resumed"]
    assert list((tmp_path / RUNS).iterdir()) == []
    assert not run().data["resumed"]
    assert run().data["ref"] == "new@1"  # the same bytes as without the interruption


@pytest.mark.parametrize(
    ("use", "error", "told"),
    [
        (lambda: domain(ONE, "digits~gray"), TaskError, "unknown change '~gray'"),
        (lambda: domain("nobody", "digits"), ShelfError, "nobody"),
        (lambda: domain("pair.rp", "digits"), ShelfError, "name it with head"),
        (lambda: domain(ONE, "digits", rp_head="pair.dcc"), ContractError, "rotation"),
        (lambda: domain(ONE, "digits", name="a/b"), ShelfError, "cannot name a part"),
        (lambda: domain(ONE, "digits", pretext="rotatoin"), SettingsError, "did you mean rotation"),
        (lambda: replace(ONE, "digits"), SettingsError, "say what the new front is"),
        (lambda: replace(ONE, "digits", net="mlp", start="x"), SettingsError, "say what the new"),
        (lambda: replace(ONE, "digits", net="mlp"), TaskError, "does not know the class"),
        (lambda: devices("digits"), SettingsError, "name the devices' networks"),
        (lambda: devices("digits", nets=["mlp"], at=["a", "b"]), SettingsError, "2 points for 1"),
        (lambda: extend(f"{ONE}.head", "digits", front="nobody"), ShelfError, "no part 'nobody'"),
        (lambda: extend(f"{ONE}.head", "digits[3,4]", front=ONE), TaskError, "no images of 0"),
        (
            lambda: extend(f"{ONE}.head", "digits", front=ONE, moving=True),
            SettingsError,
            "needs rp_head=",
        ),
        (lambda: transfer(f"{ONE}.head", "digits"), TaskError, "does not know 3, 4"),
        (lambda: transfer(f"{ONE}.front", "digits"), SettingsError, "name the candidates"),
    ],
)
def test_mistakes_leave_the_shelf_as_it_was(shelf, parts, monkeypatch, use, error, told):
    monkeypatch.chdir(shelf.parent)
    before = sorted(path for path in shelf.rglob("*") if ".work" not in path.parts)
    with pytest.raises(error, match=told):
        use()
    after = sorted(path for path in shelf.rglob("*") if ".work" not in path.parts)
    assert after == before


def test_the_commands(shelf, data, tmp_path, capsys):
    three, about = f"{data}[0,1,2]", ("--shelf", shelf, "--json", "--batch-size", 16)
    for words in (
        ("domain", ONE, f"{three}~blur1", "--epochs", 1, "--no-resume"),
        (
            "replace",
            ONE,
            three,
            "--from",
            OTHER,
            "--at",
            "hidden1",
            "--epochs",
            1,
            "--norms",
            "batch",
        ),
        ("devices", three, "--net", "mlp", "--at", "hidden1", "--channels", 4, "--epochs", 1),
        ("extend", f"{ONE}.head", data, "--front", ONE, "--classes", "3", "--epochs", 1),
        ("transfer", ONE, three, "--fronts", ONE, "--steps", "1,2", "--epochs", 0),
    ):
        said = call(capsys, "reuse", *words, *about, "--record", tmp_path / words[0])
        assert (said.code, said.err) == (0, ""), said
        assert said.json
        assert len(list((tmp_path / words[0]).iterdir())) == (1 if words[0] == "transfer" else 2)
    said = call(capsys, "reuse", "domain", ONE, f"{three}~blur1", "--epochs", 1, *about[:2])
    assert "on the shelf" in said.out
    for words in (("domain", "nobody", three), ("transfer", ONE, three, "--steps", "x")):
        said = call(capsys, "reuse", *words, *about)
        assert (said.code, said.err.count("\n"), said.out) == (2, 1, "")
