"""Parts that fit, at the command line: trained for it, exchanged, and put to use."""

import pytest
from cli.console import call

DCC = "--how compatible --by dcc,rp --at conv2 --set norm=batch --epochs 10 --name pair"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fit")


@pytest.fixture
def run(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)

    def command(*words):
        said = call(capsys, *words, "--json")
        assert (said.code, said.err) == (0, ""), said
        return said.json

    return command


def test_from_compatible_training_to_its_uses(run):
    low, negative = "digits[0,1,2,3,4,5]", "digits[0,1,2,3,4,5]~inverted"
    trained = run("train", low, negative, *DCC.split())
    one, other = (f"pair.{name}" for name in trained["networks"])
    assert trained["recombination"] > 0.6
    assert trained["upper_bound"] > 0.95

    found = run("shelf", "find", "--fits", f"{one}.head")["rows"]
    assert found[0]["ref"] == f"{one}.front@1"  # measured together, and the best

    joined = run("join", f"{one}.front", f"{other}.head", "--norms", "batch", "--task", low)
    assert joined["why_not"] == []
    assert joined["measures"]["accuracy"] > 0.5

    again = run("recombine", one, other, "--task", low, "--task", negative)
    assert again["mean_off_diagonal"] == pytest.approx(trained["recombination"])

    swapped = run(
        "reuse", "replace", one, low, "--net", "lenet5", "--set", "norm=batch", "--at", "conv2",
        "--auxiliary", "pair.dcc", "--epochs", 4, "--name", "swapped",
    )  # fmt: skip
    assert swapped["after"] > 0.9

    wider = run("reuse", "extend", f"{one}.head", "digits", "--front", one, "--name", "wider")
    assert wider["classes"] == [str(i) for i in range(10)]
    assert wider["accuracy"][one] > 0.75

    ranked = run("reuse", "transfer", f"{one}.head", low, "--epochs", 0, "--fronts", other, one)
    assert ranked["order"][0] == one
    run("shelf", "verify")
