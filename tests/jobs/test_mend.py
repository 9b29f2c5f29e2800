"""A join that is refused, explained and repaired from the command line; what the shelf keeps."""

from __future__ import annotations

import pytest
from cli.console import call

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.jobs.join import REPAIRS, JoinRefused, explain, join, mend
from dovetail.measure.evaluate import evaluate
from dovetail.measure.joined import calibrating_batches
from dovetail.parts.cutting import cut
from dovetail.parts.joining import join as join_parts
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.train.end_to_end import end_to_end


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


@pytest.fixture(scope="module")
def halves(digits):
    nets = {
        name: end_to_end(
            build("lenet5", size=8, norm="batch", seed=seed), digits, epochs=2, seed=seed
        ).part
        for seed, name in enumerate(("one", "two"))
    }
    return {name: cut(net, at="conv2") for name, net in nets.items()}


@pytest.fixture
def shelf(halves, tmp_path):
    store = Shelf(tmp_path / "shelf")
    for name, (front, back) in halves.items():
        store.add(front, f"{name}.front")
        store.add(back, f"{name}.back")
    return tmp_path / "shelf"


STRANGERS = ["one.front", "two.back"]


@pytest.fixture
def run(capsys, shelf):
    return lambda *words: call(capsys, "join", *words, "--shelf", shelf)


# Refused ------------------------------------------------------------------------------------------


def test_a_refusal_lists_reasons_and_repairs(run, shelf):
    said = run(*STRANGERS)
    assert (said.code, said.out) == (2, "")
    lines = said.err.splitlines()
    assert lines[0].startswith("dovetail: ")
    assert any(line.startswith("  - space") for line in lines)
    assert "Repairs that would apply; give a task to learn their price" in said.err
    first = next(line for line in lines if "--repair stitch" in line)
    assert first == (
        "dovetail join one.front two.back --task TASK --repair stitch "
        "--reference two.front@1 --name NAME"
    )
    assert Shelf(shelf).fits() == []


def test_a_refusal_with_a_task_has_prices_and_as_data_too(run, tmp_path):
    words = (*STRANGERS, "--task", "digits", "--epochs", "1")
    said = run(*words)
    assert (said.code, said.out) == (2, "")
    row = next(line for line in said.err.splitlines() if line.startswith("trained-stitch "))
    assert "%" in row
    assert "measured" in row
    assert "expected" in said.err
    said = run(*words, "--json", "--record", tmp_path / "records")
    assert said.code == 2
    assert said.json["refused"] is True
    assert said.json["why_not"][0].startswith("The front gives the space")
    figures = {r["name"]: (r["kind"], r["accuracy"]) for r in said.json["repairs"] if r["applies"]}
    assert set(figures) == {"trained-stitch", "stitch", "recalibrate", "retrain"}
    assert figures["stitch"][1] > max(said.json["as_it_is"].values()) + 0.2
    assert said.err.startswith("dovetail: ")
    (file,) = (tmp_path / "records").glob("*.json")
    assert load_record(file).as_it_is == said.json["as_it_is"]


def test_a_refusal_among_three_parts_is_not_priced(shelf):
    with pytest.raises(JoinRefused) as refused:
        join(["one.front", "one.back", "two.back"], task="digits", shelf=shelf)
    assert refused.value.outcome.data["task"] is None
    assert refused.value.outcome.data["fits"] is False


def test_what_keeps_the_pricing_does_not_hide_the_refusal(shelf):
    with pytest.raises(ContractError, match="cannot follow") as refused:
        join(STRANGERS, "digits", epochs=0, shelf=shelf)
    assert "No repair could be priced: epochs must be" in str(refused.value)


# Explained ----------------------------------------------------------------------------------------


def test_explaining_is_no_refusal(run, shelf):
    said = run(*STRANGERS, "--task", "digits", "--explain", "--epochs", "1")
    assert (said.code, said.err) == (0, "")
    assert "The contract refuses the join, for 1 reason." in said.out
    assert "two.front@1 + head" in said.out
    told = explain(STRANGERS, shelf=shelf).data
    assert (told["fits"], told["best"], told["chance"]) == (False, None, None)
    fitting = explain(["one.front", "one.back"], task="digits", shelf=shelf).data
    assert (fitting["fits"], fitting["why_not"]) == (True, [])
    assert fitting["as_it_is"]["stored"] > 0.8
    assert Shelf(shelf).fits() == []


# Repaired -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("repair", ["stitch", "trained-stitch"])
def test_a_stitch_is_made_measured_and_shelved(run, shelf, halves, digits, repair):
    said = run(*STRANGERS, "--task", "digits", "--repair", repair, "--name", "mended", "--json")
    assert (said.code, said.err) == (0, "")
    assert (said.json["stitch_ref"], said.json["ref"]) == ("mended.stitch@1", "mended@1")
    store = Shelf(shelf)
    (front, _), (_, head) = halves["one"], halves["two"]
    between = store.get("mended.stitch")
    norms = said.json["norms"]
    batches = calibrating_batches(front, digits) if norms == "recalibrated" else None
    whole = join_parts(front, between, head, norms=norms, data=batches)
    accuracy = evaluate(whole, digits).accuracy
    forced = evaluate(join_parts(front, head, force=True), digits).accuracy
    # Batch statistics depend on which images meet, so their accuracy does too, a little.
    assert said.json["measures"]["accuracy"] == pytest.approx(accuracy, abs=0.03)
    assert accuracy > forced + 0.2
    (fit,) = store.fits()
    assert fit.chain == (front.digest, between.digest, head.digest)
    assert fit.accuracy == said.json["measures"]["accuracy"]
    assert (fit.split, fit.norms, fit.task) == ("test", norms, "digits")
    route = store.path("one.front", "two.back")
    assert (route.between, route.measured) == (("mended.stitch@1",), fit.accuracy)
    assert said.json["kept"] is True


def test_recalibrated(shelf, halves):
    done = mend(STRANGERS, repair="recalibrate", task="digits", name="again", shelf=shelf)
    assert "stitch_ref" not in done.data
    (fit,) = Shelf(shelf).fits()
    assert (fit.norms, fit.through) == ("recalibrated", ())
    forced = join(STRANGERS, task="digits", norms="recalibrated", force=True, shelf=shelf)
    assert done.data["measures"] == forced.data["measures"]
    assert Shelf(shelf).fits() == [fit]  # measured again, it is replaced


def test_a_stitch_that_is_not_shelved_is_not_kept(shelf):
    done = mend(STRANGERS, repair="stitch", task="digits", norms="recalibrated", shelf=shelf)
    assert done.data["kept"] is False
    assert Shelf(shelf).fits() == []


def test_the_commands_that_a_report_gives_can_be_run(run, shelf):
    told = explain(STRANGERS, task="digits", epochs=1, shelf=shelf).data["repairs"]
    commands = [r["command"] for r in told if r["applies"] and r["command"]]
    joins = [command for command in commands if command.startswith("dovetail join")]
    assert len(joins) == len(REPAIRS)
    assert [c for c in commands if c not in joins] == [
        "dovetail reuse replace two digits --from one.front"
    ]
    for number, command in enumerate(joins):
        words = command.replace("NAME", f"n{number}").split()[2:]
        said = run(*words, "--json")
        assert (said.code, said.err) == (0, "")
        assert said.json["ref"] == f"n{number}@1"


# Measured joins -----------------------------------------------------------------------------------


def test_a_measured_join_is_kept(shelf, halves):
    done = join(["one.front", "one.back"], task="digits", shelf=shelf)
    (fit,) = Shelf(shelf).fits()
    assert done.data["kept"] is True
    assert fit.chain == tuple(part.digest for part in halves["one"])
    assert (fit.accuracy, fit.chance) == (done.data["measures"]["accuracy"], 0.1)
    assert join(STRANGERS, force=True, shelf=shelf).data.get("kept") is None


def test_parts_from_folders_leave_no_trace(shelf, halves, tmp_path):
    folders = [
        str(part.save_pretrained(tmp_path / name))
        for name, part in zip(("f", "h"), halves["one"], strict=True)
    ]
    done = join(folders, task="digits", shelf=tmp_path / "elsewhere")
    assert done.data["kept"] is False
    assert not (tmp_path / "elsewhere").exists()


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["one.front", "two.back", "--repair", "stitch"], "a repair needs --task"),
        (["one.front", "--repair", "stitch", "--task", "digits"], "between a front and a head"),
        (["one.front", "--explain"], "a front and a head"),
        ([*STRANGERS, "--explain", "--repair", "stitch"], "not allowed with"),
        ([*STRANGERS, "--explain", "--force"], "neither --force nor --adapters"),
        ([*STRANGERS, "--explain", "--name", "x"], "shelves nothing"),
        ([*STRANGERS, "--repair", "glue"], "unknown --repair 'glue'"),
        ([*STRANGERS, "--task", "digits", "--repair", "stitch", "--name", "a/b"], "cannot name"),
        (
            [*STRANGERS, "--task", "digits", "--repair", "stitch", "--reference", "one.front"],
            "no front of the head's space",
        ),
        (
            [*STRANGERS, "--task=digits", "--repair=trained-stitch", "--norms=recalibrated"],
            "--norms stored or batch",
        ),
        (
            [*STRANGERS, "--task", "digits", "--repair", "recalibrate", "--norms", "batch"],
            "leave --norms out",
        ),
    ],
)
def test_a_mistake_is_told_and_nothing_is_shelved(run, shelf, words, told):
    before = sorted(path.name for path in shelf.iterdir())
    said = run(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("dovetail: ")
    assert told in said.err
    assert sorted(path.name for path in shelf.iterdir()) == before


def test_no_reference_on_the_shelf(shelf):
    Shelf(shelf).rm("two.front", all_versions=True)
    with pytest.raises(SettingsError, match="the shelf has none; name one with --reference"):
        mend(STRANGERS, repair="stitch", task="digits", shelf=shelf)


def test_classes_that_the_head_does_not_know(shelf, digits, monkeypatch):
    renamed = digits.derived("some", classes=tuple("012defghij"))
    monkeypatch.setattr("dovetail.jobs.frame.load_task", lambda *_, **__: renamed)
    done = mend(STRANGERS, repair="stitch", task="some", shelf=shelf)
    assert done.data["measures"]["masked accuracy"] > 0.6
    alien = digits.derived("letters", classes=tuple("abcdefghij"))
    monkeypatch.setattr("dovetail.jobs.frame.load_task", lambda *_, **__: alien)
    with pytest.raises(TaskError, match=r"share by name, two or more; .* knows .* 'letters' has"):
        mend(STRANGERS, repair="stitch", task="letters", shelf=shelf)
