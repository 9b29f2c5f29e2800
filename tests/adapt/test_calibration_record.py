import pytest
import torch

from dovetail.adapt.calibration_record import (
    Calibration,
    Coverage,
    calibration_of,
    coverage_of,
)
from dovetail.core.errors import TaskError
from dovetail.core.records import load_record
from dovetail.core.views import Figure, Table
from dovetail.measure.calibration import expected_calibration_error, nll
from dovetail.measure.intervals import coverage
from dovetail.report.export import drawings


def classified(sharpness=1.0, n=300, **facts):
    draw = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, 4, generator=draw)
    labels = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    probs = (sharpness * logits).softmax(1)
    return calibration_of(probs, labels, method="net", task="noise", **facts), probs, labels


def regressed(spread=1.0, *shape, **facts):
    draw = torch.Generator().manual_seed(0)
    mean = torch.randn(*shape, generator=draw)
    y = mean + spread * torch.randn(*shape, generator=draw)
    std = torch.ones(*shape)
    return coverage_of(mean, std, y, method="gp", task="waves", **facts), mean, std, y


def figures(record):
    return [block for block in record.view() if isinstance(block, Figure)]


def test_a_calibration_holds_the_measures():
    record, probs, labels = classified(temperature=1.5, settings={"links": "probit"})
    assert record.n == 300
    assert record.accuracy == pytest.approx(float((probs.argmax(1) == labels).double().mean()))
    assert record.confidence == pytest.approx(float(probs.amax(1).mean()), rel=1e-6)
    assert record.ece == expected_calibration_error(probs, labels)
    assert record.nll == nll(probs, labels)
    assert record.temperature == 1.5
    assert record.settings == {"bins": 15, "scheme": "width", "seed": 0, "links": "probit"}


def test_a_coverage_holds_the_measures():
    record, mean, std, y = regressed(1.0, 80, 2, levels=(0.5, 0.9))
    assert record.n == 80
    assert record.levels == (0.5, 0.9)
    assert record.covered == (coverage(mean, std, y, 0.5), coverage(mean, std, y, 0.9))
    assert record.rmse == pytest.approx(float((mean - y).square().mean().sqrt()), rel=1e-6)
    expected = (abs(record.covered[0] - 0.5) + abs(record.covered[1] - 0.9)) / 2
    assert record.error == pytest.approx(expected)
    assert record.main.level == 0.9


@pytest.mark.parametrize("make", [classified, lambda: regressed(1.0, 50)], ids=["class", "number"])
def test_to_a_file_and_back(make, tmp_path):
    record, *_ = make()
    found = load_record(record.save(tmp_path / "record.json"))
    assert isinstance(found, Calibration | Coverage)
    assert found == record
    assert found.view() == record.view()


def test_a_wrong_answer_with_certainty_can_be_kept(tmp_path):
    record = calibration_of([[1.0, 0.0]], [1], method="net", task="noise")
    assert load_record(record.save(tmp_path / "record.json")) == record
    assert drawings([record])


def test_it_says_over_confident_and_whether_that_may_be_luck():
    honest, sharp, flat = (classified(s)[0] for s in (1.0, 3.0, 0.3))
    assert honest.consistent
    assert "luck alone may give" in honest.summary
    assert not sharp.consistent
    assert "over-confident by" in sharp.summary
    assert "more than luck" in sharp.summary
    assert "under-confident by" in flat.summary


def test_it_says_too_few_too_many_or_as_they_should():
    assert "but for luck" in regressed(1.0, 300)[0].summary
    assert "too few" in regressed(3.0, 300)[0].summary
    assert "more than they claim" in regressed(0.2, 300)[0].summary


def test_the_diagram_shows_the_bins_in_use_beside_the_diagonal():
    record, *_ = classified()
    diagram, shares = figures(record)
    found, diagonal = diagram.series
    used = [each for each in record.bins if each.count]
    assert found.x == tuple(each.confidence for each in used)
    assert found.y == tuple(each.accuracy for each in used)
    for y, low, high in zip(found.y, found.low, found.high, strict=True):
        assert 0 <= low <= y <= high <= 1
    assert diagonal.x == diagonal.y == (0.0, 1.0)
    assert sum(shares.series[0].y) == pytest.approx(1)
    assert len(shares.series[0].x) == len(set(shares.series[0].x)) == 15


def test_bins_of_equal_mass_need_no_bars():
    record, *_ = classified(scheme="mass")
    assert len(figures(record)) == 1


def test_the_curve_is_drawn_in_the_order_of_the_levels():
    record, *_ = regressed(1.0, 50, levels=(0.9, 0.5))
    assert figures(record)[0].series[0].x == (0.5, 0.9)
    levels = [block for block in record.view() if isinstance(block, Table)][-1]
    assert levels.shown()[0][0] == "90%"


@pytest.mark.parametrize("n", [1, 2, 300])
def test_every_record_can_be_drawn(n):
    drawn = drawings([classified(n=n)[0], regressed(1.0, n)[0]])
    assert len(drawn) == 3
    assert all("no data" not in each.drawing for each in drawn)


def test_the_same_bytes_twice():
    assert classified()[0].to_json() == classified()[0].to_json()


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(TaskError, match="sum to one"):
        calibration_of([[1.0, 1.0]], [0], method="net", task="noise")
    with pytest.raises(TaskError, match="above zero"):
        coverage_of([0.0], [0.0], [0.0], method="gp", task="waves")
