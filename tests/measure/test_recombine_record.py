import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from dovetail.core.records import load_record
from dovetail.core.views import Heatmap, Table
from dovetail.measure.recombine import Pair, Recombination, recombine
from dovetail.parts.contract import Contract
from dovetail.parts.cutting import cut
from dovetail.parts.norms import STRANGERS
from dovetail.parts.part import build
from dovetail.report.page import render_page
from dovetail.report.terminal import print_view


def test_the_record_comes_back_from_its_file(fronts, heads, tasks, tmp_path):
    found = recombine(fronts, heads, tasks, norms=("batch", "stored"))
    again = load_record(found.save(tmp_path / "r.json"))
    assert again == found
    assert again.settings["front_digests"]["abcd"] == fronts["abcd"].digest
    assert again.settings["head_digests"]["cdeb"] == heads["cdeb"].digest
    assert again.settings["task_fingerprints"]["abcd"] == tasks["abcd"].fingerprint


def test_what_is_shown(fronts, heads, tasks, renamed, capsys):
    met = heads | {"strange": renamed(heads["abcd"], "wxyz")}
    found = recombine(fronts, met, tasks, norms=("batch", "stored"))
    heat, pairs, alike, _ = found.view()
    assert isinstance(heat, Heatmap)
    assert heat.values[0][:2] == tuple(found.accuracy["abcd"].values())[:2]
    assert heat.values[0][2] is None
    assert isinstance(pairs, Table)
    assert len(pairs.rows) == 6
    assert pairs.columns[1:4] == ("accuracy", "stored norms", "chance")
    assert pairs.shown()[0][1] == f"{found.accuracy['abcd']['abcd']:.1%}"
    assert alike.rows[0][:2] == ("abcd", "cdeb")
    print_view(found.view())
    page, words = render_page([found], title="Mine"), capsys.readouterr().out
    for shown in ("no class is common", "Recombination accuracy with batch norms", "strange"):
        assert shown in words
        assert shown in page


def pair(front, head, accuracy, *, why=(), own=0.9, classes="ab"):
    return Pair(
        front,
        head,
        tuple(why),
        tuple(classes),
        2,
        10,
        {} if accuracy is None else {"batch": accuracy},
        {},
        {} if accuracy is None or own is None else {"batch": own},
        "no" if accuracy is None else None,
    )


def test_the_means_leave_out_what_was_not_measured():
    own = {"a": "a", "b": "b"}
    met = (
        pair("a", "a", 1.0),
        pair("a", "b", 0.6, own=1.0),
        pair("b", "a", None),
        pair("b", "b", 0.8),
    )
    found = Recombination(norms=("batch",), pairs=met, own_heads=own)
    assert found.mean_off_diagonal == 0.6
    assert found.upper_bound == 1.0
    assert found.fits == {"a": {"a": True, "b": True}, "b": {"a": True, "b": True}}
    assert "(1 pair; chance 50.0%, 100.0% with the fronts' own heads)" in found.summary
    diagonal = Recombination(norms=("batch",), pairs=(met[0],), own_heads=own)
    assert diagonal.mean_off_diagonal is None
    assert repr(diagonal) == "Recombination(1 front × 1 head)"
    assert "The 1 pair whose contract allows the join scores 100.0% or more." in diagonal.summary


def test_the_summary_says_what_the_contract_knew():
    why = ["space 'x' -> 'y'"]
    met = (pair("a", "a", 1.0), pair("a", "b", 0.5, why=why))
    said = Recombination(norms=("batch",), pairs=met, own_heads={"a": "a"}).summary
    assert said.endswith("The 1 other the contract refused beforehand.")
    met += (pair("a", "c", 0.9), pair("a", "d", 0.2, why=why))
    said = Recombination(norms=("batch",), pairs=met, own_heads={"a": "a"}).summary
    assert "The 2 pairs whose contract allows the join score 90.0% or more." in said
    assert "The 2 pairs it refused beforehand average 35.0% (chance 50.0%)." in said
    assert "Recombination accuracy with batch norms: 53.3% (3 pairs; chance 50.0%, 90.0%" in said


def test_an_upper_bound_of_some_pairs_is_none():
    met = (pair("a", "b", 0.5), pair("a", "c", 0.5, own=None))
    assert Recombination(norms=("batch",), pairs=met, own_heads={}).upper_bound is None


# Correlation of the fronts ------------------------------------------------------------------------


def test_a_front_correlates_with_itself_and_with_its_channels_in_another_order(fronts, tasks):
    front = fronts["abcd"]
    turned = front.changed(module=copy.deepcopy(front.module))
    conv, norm = _last_conv_and_norm(turned)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for tensor in (conv.weight, conv.bias, norm.weight, norm.bias):
            if tensor is not None:
                tensor.copy_(tensor[order].clone())
        for tensor in (norm.running_mean, norm.running_var):
            tensor.copy_(tensor[order].clone())
    head = cut(build("lenet5", size=8, classes=4, norm="batch"), at="conv2")[1]
    met = {"one": front, "same": front, "turned": turned}
    for norms in ("batch", "stored", "recalibrated"):
        found = recombine(met, head, tasks["abcd"], norms=norms).alike
        alike = {(each.one, each.other): each for each in found}
        assert set(alike) == {("one", "same"), ("one", "turned"), ("same", "turned")}
        assert alike["one", "same"].plain == pytest.approx(alike["one", "same"].permuted)
        # Channels that never fire correlate with nothing, so the mean need not be 1.
        live = alike["one", "same"].plain
        assert live > 0.5
        assert alike["one", "turned"].permuted == pytest.approx(live)
        assert alike["one", "turned"].plain < live - 0.2


def _last_conv_and_norm(part):
    modules = list(part.module.modules())
    conv = [each for each in modules if isinstance(each, nn.Conv2d)][-1]
    return conv, [each for each in modules if isinstance(each, nn.BatchNorm2d)][-1]


def test_fronts_that_cannot_be_compared_are_left_out(fronts, heads, tasks):
    early = cut(build("lenet5", size=8, classes=4), at="conv1")[0]  # other channels
    plain = Contract(fronts["cdeb"].contract.takes, fronts["cdeb"].contract.gives)
    larger = tasks["abcd"].derived(
        "larger", inputs=nn.functional.interpolate(tasks["abcd"].inputs, size=(16, 16))
    )
    met = {"a": fronts["abcd"], "early": early, "bare": fronts["cdeb"].changed(contract=plain)}
    where = {"a": larger, "early": tasks["abcd"], "bare": tasks["cdeb"]}
    assert recombine(met, heads, where).alike == ()
    assert len(recombine(met, heads, tasks["abcd"]).alike) == 1
    assert recombine(met, heads, tasks["abcd"], correlation=False).alike == ()


def test_the_record_says_which_norms_were_chosen_and_why(fronts, heads, tasks, tmp_path):
    chosen = recombine(fronts, heads, tasks, correlation=False)
    said = f"Batch norms: batch statistics, chosen because {STRANGERS}."
    assert (chosen.norms, chosen.norms_why) == (("batch",), STRANGERS)
    assert [block.text for block in chosen.view() if getattr(block, "style", "") == "note"] == [
        said
    ]
    assert load_record(chosen.save(tmp_path / "chosen.json")) == chosen
    own = recombine(fronts["abcd"], heads["abcd"], tasks["abcd"])
    assert own.norms == ("stored",)


def test_a_record_from_before_norms_were_chosen_is_still_read(fronts, heads, tasks, tmp_path):
    asked = recombine(fronts, heads, tasks, norms=("batch", "stored"), correlation=False)
    without = {key: value for key, value in asked.settings.items() if key != "norms_why"}
    before = replace(asked, settings=without)
    again = load_record(before.save(tmp_path / "before.json"))
    assert again == before
    assert again.norms_why is None
    assert again.view() == asked.view()
