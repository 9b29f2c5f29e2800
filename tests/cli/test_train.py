"""Flags of ``dovetail train``: what was given counts, what is usual does not."""

from __future__ import annotations

import pytest

from dovetail.cli.main import _parser
from dovetail.settings.train import WAYS, Way


@pytest.fixture
def solved(run, tmp_path, monkeypatch):
    """Run a fit in closed form in an empty folder."""
    monkeypatch.chdir(tmp_path)
    words = ("train", "digits", "--how", "closed-form", "--set", "hidden=[16]", "--json")
    return lambda *more: run(*words, *more)


@pytest.mark.parametrize(
    "words",
    [
        ("--epochs", "20"),
        ("--batch-size", "64"),
        ("--lr", "0.1"),
        ("--device", "auto"),
        ("--checkpoint-seconds", "10"),
        ("--resume",),
        ("--no-resume",),
    ],
)
def test_a_flag_of_steps_is_refused_where_there_are_none(solved, words):
    said = solved(*words)
    assert said.code == 2
    assert said.err.startswith(f"dovetail: {words[0]} is an option of --how end-to-end, modular")
    assert "not of --how closed-form" in said.err


def test_flags_that_were_not_given_are_not_there():
    args = vars(_parser().parse_args(["train", "digits"]))
    declared = {name for way in WAYS.values() for name in way.settings.declared}
    assert {name for name in declared if args[name] is not None} == set()


def test_rank_and_precision_reach_the_fit(solved):
    said = solved("--rank", 4, "--precision", "float64").json
    settings = said["layers"]["settings"]
    assert (settings["rank"], settings["precision"]) == (4, "float64")
    assert said["precision"] == "float64"


def test_what_to_be_careful_about_is_said(solved, run):
    words = ("train", "digits", "--how", "closed-form", "--set", "hidden=[700,20]")
    said = " ".join(run(*words).out.split())
    assert "Hidden layer 1 has 700 units for 1258 rows" in said
    assert "fewer units or a ridge of your own" in said
    assert "--patience 1 stops where it rises" in said
    assert "fewer units" not in solved().out


def test_the_example_in_the_help_is_better_than_no_widths(solved, run):
    words = WAYS["closed-form"].example.split()
    assert words[:5] == ["dovetail", "train", "digits", "--how", "closed-form"]
    example, plain = (run(*each, "--json").json for each in (words[1:], words[1:5]))
    assert example["measures"]["test accuracy"] > plain["measures"]["test accuracy"]


class Stop(Exception):
    """Enough was seen."""


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), {"resume": True, "checkpoint_seconds": 10.0}),
        (("--no-resume",), {"resume": False, "checkpoint_seconds": 10.0}),
        (("--lr", "0.5", "--epochs", 3), {"lr": 0.5, "epochs": 3, "resume": True}),
    ],
)
def test_what_was_given_reaches_the_trainer(run, tmp_path, monkeypatch, words, asked):
    seen = {}

    def trainer(part, task, **options):
        seen.update(options)
        raise Stop

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Way, "load", lambda _: trainer)
    with pytest.raises(Stop):
        run("train", "digits", "--net", "mlp", *words)
    assert asked.items() <= seen.items()
    assert not {"lr", "epochs", "device", "modules"} & (seen.keys() - asked.keys())


def test_a_plan_says_what_each_way_takes_and_trains_nothing(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("train", "digits", "--batch-size", "256", "--memory-budget", "95%", "--plan")
    said = run(*words, "--json")
    assert said.code == 0
    facts = said.json
    assert facts["take"] in {way["name"] for way in facts["ways"]}
    assert facts["stages"]
    assert "layer by layer" in run(*words).out
    assert not (tmp_path / "shelf").exists()


@pytest.mark.parametrize("budget", ["0", "1.5", "much"])
def test_what_is_no_budget_is_told_before_torch_loads(run, budget):
    said = run("train", "digits", "--memory-budget", budget)
    assert said.code == 2
    assert "--memory-budget is a share above 0" in said.err


def test_a_budget_that_cannot_be_kept_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("train", "digits", "--memory-budget", "10kB")
    assert said.code != 0
    assert "which 'conv1" in said.err
