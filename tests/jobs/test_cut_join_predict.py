import numpy as np
import pytest
import torch
from cli.console import call

from dovetail.core.errors import ContractError, SettingsError
from dovetail.jobs.cut import cut
from dovetail.jobs.demo import joins_by_depth
from dovetail.jobs.join import join
from dovetail.jobs.predict import predict
from dovetail.jobs.report import report
from dovetail.measure.evaluate import evaluate
from dovetail.measure.predict import predict as predict_inputs
from dovetail.parts.norms import ONE_NETWORK, STRANGERS
from dovetail.parts.part import build
from dovetail.shelf.store import Shelf
from dovetail.tasks.load import load_task
from dovetail.train import end_to_end


@pytest.fixture(scope="module")
def digits():
    return load_task("digits")


@pytest.fixture(scope="module")
def trained(digits):
    net = build("lenet5", size=8, norm="batch")
    return end_to_end(net, digits, epochs=1, batch_size=128).part


@pytest.fixture
def shelf(trained, tmp_path):
    Shelf(tmp_path / "shelf").add(trained, "net")
    return tmp_path / "shelf"


def test_points_are_listed_with_shapes(shelf):
    points = {p["at"]: p for p in cut("net", shelf=shelf).data["points"]}
    assert points["conv2"] == {"at": "conv2", "shape": (16, 2, 2), "after": "relu"}
    assert "head" not in points


def test_cut_halves_join_to_the_whole(shelf, trained, digits):
    outcome = cut("net@1", "conv2", shelf=shelf)
    assert (outcome.data["front"], outcome.data["back"]) == ("net.front@1", "net.back@1")
    joined = join(["net.front", "net.back"], task="digits", name="again", shelf=shelf)
    assert joined.data["why_not"] == []
    assert joined.data["measures"] == pytest.approx(evaluate(trained, digits).measures)
    assert joined.data["ref"] == "again@1"
    x = digits.inputs[:5]
    again = Shelf(shelf).get("again")
    assert torch.equal(
        predict_inputs(again, x).probabilities, predict_inputs(trained, x).probabilities
    )


def test_names_of_halves(shelf):
    assert cut("net", "conv1", name="early", shelf=shelf).data["front"] == "early.front@1"


def test_a_misfit_is_refused_and_may_be_forced(shelf):
    Shelf(shelf).add(build("lenet5", size=8, norm="batch", seed=1), "twin")
    cut("net", "conv2", shelf=shelf)
    cut("twin", "conv2", shelf=shelf)
    with pytest.raises(ContractError, match="cannot follow"):
        join(["net.front", "twin.back"], shelf=shelf)
    forced = join(["net.front", "twin.back"], task="digits", force=True, shelf=shelf)
    assert forced.data["why_not"]
    assert forced.data["why_not"][0].startswith("space")
    assert any("Although: space" in getattr(block, "text", "") for block in forced.view)
    assert forced.data["chance"] == 0.1


def test_norms_are_recalibrated_on_the_training_images(shelf):
    cut("net", "conv2", shelf=shelf)
    parts = ["net.front", "net.back"]
    with pytest.raises(SettingsError, match="need --task"):
        join(parts, norms="recalibrated", shelf=shelf)
    stored, fresh = (
        join(parts, task="digits", norms=norms, shelf=shelf).data
        for norms in ("stored", "recalibrated")
    )
    assert stored["measures"] != fresh["measures"]
    assert abs(stored["measures"]["accuracy"] - fresh["measures"]["accuracy"]) < 0.3


def test_a_join_says_which_norms_it_has_chosen(shelf, capsys):
    Shelf(shelf).add(build("lenet5", size=8, norm="batch", seed=1), "twin")
    cut("net", "conv2", shelf=shelf), cut("twin", "conv2", shelf=shelf)
    halves = call(capsys, "join", "net.front", "net.back", "--shelf", shelf)
    assert f"Batch norms: stored statistics, because {ONE_NETWORK}." in halves.out
    words = ("join", "net.front", "twin.back", "--force", "--shelf", shelf)
    assert f"Batch norms: batch statistics, because {STRANGERS}." in call(capsys, *words).out
    said = call(capsys, *words, "--task", "digits", "--name", "both", "--json").json
    assert "validation images stored" in said["norms_why"]
    kept = Shelf(shelf).get("both")
    assert kept.origin.settings["norms"] == said["norms"] != "batch"
    assert len(predict_inputs(kept, load_task("digits").inputs[:1]).labels) == 1
    asked = call(capsys, *words, "--norms", "stored", "--json").json
    assert asked["norms"] == "stored"
    assert "norms_why" not in asked


@pytest.mark.parametrize("form", ["npy", "npz"])
def test_predictions_for_a_file(shelf, trained, digits, tmp_path, form):
    x = digits.subset("test")[0][:7].numpy()
    file = tmp_path / f"x.{form}"
    np.save(file, x) if form == "npy" else np.savez(file, inputs=x)
    said = predict("net", str(file), shelf=shelf).data
    expected = predict_inputs(trained, x)
    assert [row["class"] for row in said["predictions"]] == list(expected.labels)
    assert [row["confidence"] for row in said["predictions"]] == list(expected.confidence)
    assert len(predict("net", str(file), most=3, shelf=shelf).data["predictions"]) == 3


def test_predictions_for_a_task_come_with_the_truth(shelf, trained, digits):
    said = predict("net", "digits", shelf=shelf).data["predictions"]
    right = sum(row["class"] == row["true class"] for row in said) / len(said)
    assert right == pytest.approx(evaluate(trained, digits).accuracy)


def test_heads_are_exchanged_at_every_depth(trained, digits):
    twin = build("lenet5", size=8, norm="batch", seed=1)
    depth = joins_by_depth(trained, twin, digits)
    assert depth.at[:2] == ("conv1", "conv2")
    whole = evaluate(trained, digits).accuracy
    assert depth.own == pytest.approx([whole] * len(depth.at))
    assert max(depth.other) < 0.3 < whole
    assert joins_by_depth(trained, trained, digits).other == depth.own
    figure, words = depth.view()
    assert [series.y for series in figure.series[:2]] == [depth.own, depth.other]
    assert f"{max(depth.other):.1%}" in words.text


def test_a_report_of_records_and_a_shelf(shelf, trained, digits, tmp_path):
    evaluate(trained, digits).save(tmp_path / "records" / "e.json")
    outcome = report(
        [str(tmp_path / "records")], output=tmp_path / "page.html", title="Mine", shelf=shelf
    )
    assert len(outcome.data["records"]) == 2
    page = (tmp_path / "page.html").read_text()
    assert "lenet5 on digits" in page
    assert "Mine" in page
