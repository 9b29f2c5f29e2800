"""Ticks are round and enclose the data; positions are what the definition says."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.report.scales import Scale, log_ticks, nice_ticks, span_of
from dovetail.report.text import show_ticks

finite = st.floats(allow_nan=False, allow_infinity=False)
moderate = st.floats(-1e300, 1e300)


def is_round(value, digits):
    """Whether a number, written in decimal, is one of the digits and then only zeros."""
    mantissa, _ = f"{value:.12e}".split("e")
    return float(mantissa) in digits


@given(moderate, moderate)
def test_ticks_enclose_what_they_are_for(a, b):
    low, high = span_of([a, b])
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low < high <= ticks[-1]


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.integers(-8, 8))
def test_ticks_are_few_round_and_evenly_spaced(start, length, power):
    scale = 10.0**power
    ticks = nice_ticks(start * scale, (start + length) * scale)
    assert 2 <= len(ticks) <= 7
    steps = [b - a for a, b in pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps), rel=1e-6)
    assert is_round(float(f"{steps[0]:.6e}"), (1, 2, 5))


def test_ticks_are_the_floats_a_person_would_type():
    assert nice_ticks(0.0, 0.7, most=8) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]


@given(st.integers(-500, 500), st.integers(1, 40))
def test_whole_ticks_are_whole(start, length):
    ticks = nice_ticks(start, start + length, whole=True)
    assert all(tick == int(tick) for tick in ticks)


@settings(deadline=None)
@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300))
def test_logarithmic_ticks_enclose_and_are_round(a, b):
    low, high = sorted((a, b))
    ticks = log_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 7
    assert all(is_round(tick, (1, 2, 3, 5)) for tick in ticks)


@given(finite, finite, finite)
def test_a_position_is_the_share_of_the_way(a, b, c):
    low, value, high = sorted((a, b, c))
    if low == high:
        return
    share = (Fraction(value) - Fraction(low)) / (Fraction(high) - Fraction(low))
    assert Scale(low, high, 100.0, 300.0)(value) == pytest.approx(
        100 + 200 * float(share), abs=1e-6
    )


@given(st.floats(1e-300, 1e300))
def test_a_logarithmic_position_is_the_share_of_the_decades(value):
    expected = (math.log10(value) + 300) / 600 * 50
    assert Scale(1e-300, 1e300, 0.0, 50.0, log=True)(value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-320, 1.7e308, -1.7e308, 5e-324])
def test_a_single_value_gets_a_span_around_it(value):
    low, high = span_of([value])
    assert low <= value <= high
    assert low < high


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**6), st.integers(-12, 12))
def test_tick_labels_read_back_as_the_ticks(start, length, power):
    scale = 10.0**power
    ticks = nice_ticks(start * scale, (start + length) * scale)
    read = [float(label.replace("−", "-")) for label in show_ticks(ticks)]
    assert read == pytest.approx(ticks, rel=1e-9, abs=(ticks[1] - ticks[0]) * 1e-3)


@pytest.mark.parametrize("spec", [".0%", ".1f", "d", "", ".2e", ">99999999f"])
def test_tick_labels_differ_whatever_the_format(spec):
    ticks = [0.001, 0.002, 0.003]
    assert len(set(show_ticks(ticks, spec))) == 3
