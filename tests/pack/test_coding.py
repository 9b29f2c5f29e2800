"""Tokens, peels and plans: every symbol comes back, and close to the entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from references import packing as reference

from dovetail.core.errors import FormatError
from dovetail.pack import coding
from dovetail.pack.code_choice import _offers, best_code, coded_bits
from dovetail.pack.coding import BLOCK, Code, Cut, Peel, a_byte_holds, decode
from dovetail.pack.quantise import Grid


def encode(symbols, code):
    return b"".join(coding.encode(symbols, code))


def kind(bits):
    return np.uint8 if bits <= 8 else np.uint16


@st.composite
def plans(draw):
    bits = draw(st.integers(1, 16))
    widths = [bits]
    for _ in range(draw(st.integers(0, 60))):
        place = draw(st.integers(0, len(widths) - 1))
        if widths[place] > 0:
            widths[place : place + 1] = [widths[place] - 1] * 2
    left, peels = list(draw(st.permutations(range(len(widths))))), []
    for _ in range(draw(st.integers(0, 4))):
        gaps = draw(st.booleans())
        many = 1 if gaps else draw(st.integers(1, 15))
        peel, rest = tuple(left[:many]), left[many:]
        if not peel or len(peel) + bool(rest) < 2 or (gaps and not rest):
            break
        peels.append(Peel(peel, gaps))
        left = rest
    return Code(bits, tuple(widths), tuple(peels))


@given(plans(), st.integers(0, 300), st.integers(0, 10**6), st.floats(0, 1))
@settings(max_examples=150, deadline=None)
def test_any_plan_brings_any_symbols_back(code, count, seed, equal):
    rng = np.random.default_rng(seed)
    symbols = rng.integers(0, 1 << code.bits, count)
    symbols[rng.random(count) < equal] = int(rng.integers(0, 1 << code.bits))
    symbols = symbols.astype(kind(code.bits))
    back = decode(encode(symbols, code), count, code)
    assert back.dtype == symbols.dtype
    assert (back == symbols).all()


@given(st.integers(1, 14), st.integers(0, 10**6), st.floats(0.01, 3), st.integers(1, 5000))
@settings(max_examples=40, deadline=None)
def test_what_is_planned_for_some_codes_all(bits, seed, spread, count):
    rng = np.random.default_rng(seed)
    symbols = (rng.gamma(spread, size=count) * 10).clip(0, 2**bits - 1).astype(kind(bits))
    counts = np.bincount(symbols[: 1 + count // 3], minlength=1 << bits)
    code = best_code(counts, bits, count)
    symbols[0] = 2**bits - 1  # may never have been seen while planning
    assert (decode(encode(symbols, code), count, code) == symbols).all()


def test_gaps_as_long_as_a_block():
    code = Code(1, (0, 0), (Peel((0,), gaps=True),))
    for ones in ([], [0], [BLOCK - 1], [0, BLOCK - 1], [5, 6, 100_000]):
        symbols = np.zeros(BLOCK, np.uint8)
        symbols[ones] = 1
        assert (decode(encode(symbols, code), BLOCK, code) == symbols).all()
    assert int(code.gaps.lengths.sum()) == BLOCK


KINDS = {
    "normal": scipy.stats.norm(),
    "laplace": scipy.stats.laplace(),
    "uniform": scipy.stats.uniform(),
    "heavy": scipy.stats.t(4),
    "skewed": scipy.stats.gamma(2),
    "two hills": None,
    "pruned": None,
    "few levels": None,
}


def drawn(name, count):
    rng = np.random.default_rng(3)
    normal = rng.normal(size=count)
    if name == "pruned":
        return normal * (rng.random(count) < 0.1)
    if name == "two hills":
        return normal * 0.1 + np.sign(rng.normal(size=count))
    if name == "few levels":
        return rng.integers(0, 5, count).astype(float)
    return KINDS[name].rvs(count, random_state=rng)


def coded_and_ideal(name, bits, count):
    """Bytes, and what an ideal code would need for these very symbols."""
    values = drawn(name, count)[None]
    grid = Grid(1 << bits, values.min(1), values.max(1))
    symbols = grid.symbols(values)[0]
    counts = np.bincount(symbols, minlength=1 << bits)
    code = best_code(counts, bits, count)
    spent = sum(len(encode(symbols[at : at + BLOCK], code)) for at in range(0, count, BLOCK))
    return spent, scipy.stats.entropy(counts, base=2) * count / 8


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bits", [3, 4, 6, 8, 9, 12])
def test_coded_within_two_percent_of_the_entropy(name, bits):
    spent, ideal = coded_and_ideal(name, bits, 2 * BLOCK)
    # Where a weight costs less than half a bit, what every block begins with shows.
    assert spent <= 1.02 * ideal + (0 if ideal * 8 > BLOCK else 2 * 128)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("bits", [3, 5, 7, 9])
def test_a_hundred_thousand_weights_need_little_more(name, bits):
    spent, ideal = coded_and_ideal(name, bits, 100_000)
    assert spent <= 1.02 * ideal + 256


def test_an_ordinary_tensor_is_coded_the_fast_way():
    symbols = np.random.default_rng(0).normal(256, 50, BLOCK).clip(0, 511).astype(np.uint16)
    code = best_code(np.bincount(symbols, minlength=512), 9, BLOCK)
    assert code.cut.even is not None
    assert code.peels == ()


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=40))
@settings(max_examples=30, deadline=None)
def test_the_price_of_a_code_is_at_least_huffmans(counts):
    symbols = [i for i, n in enumerate(counts) for _ in range(n)]
    least = min(reference.huffman_bits(symbols), 8 * len(symbols))
    assert coded_bits(np.array(counts)) >= least - 1e-6


@pytest.mark.parametrize(
    ("bits", "widths", "peels"),
    [
        (0, (0,), ()),
        (17, (17,), ()),
        (3, (2, 1), ()),
        (3, (), ()),
        (3, (-1, 3), ()),
        (9, (0,) * 512, ()),
        (3, (3,), (Peel((0,)),)),  # one token, peeled off: nothing is left to say
        (3, (2, 2), (Peel((0,)), Peel((1,)))),
        (3, (2, 2), (Peel((0, 1), gaps=True),)),
        (3, (2, 2), (Peel((2,)),)),
        (3, (2, 1, 1), (Peel((1, 1)),)),
        (3, (2, 1, 1), (Peel(()),)),
        (5, (0,) * 32, (Peel(tuple(range(16))),)),
        (4, (0,) * 16, tuple(Peel((i,)) for i in range(5))),
    ],
)
def test_plans_that_cannot_be(bits, widths, peels):
    with pytest.raises(FormatError):
        Code(bits, widths, peels)


def test_a_byte_holds_as_many_numbers_as_fit():
    for base in range(2, 17):
        assert base ** a_byte_holds(base) <= 256 < base ** (a_byte_holds(base) + 1)


def test_numbers_of_any_width_come_back_from_their_raw_bits():
    cut = Cut(16, (15, 14, 14))
    numbers = np.random.default_rng(0).integers(0, 1 << 16, 1000).astype(np.uint16)
    code = Code(16, cut.widths)
    assert (decode(encode(numbers, code), 1000, code) == numbers).all()
    even = Code(16, (16,))
    assert (decode(encode(numbers, even), 1000, even) == numbers).all()


@settings(max_examples=60, deadline=None)
@given(
    shares=st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=64),
    power=st.floats(0.0, 6.0),
    total=st.integers(300, 10**6),
    part=st.floats(0.5, 1.5),
)
def test_a_way_to_peel_is_left_out_only_if_it_costs_too_much(shares, power, total, part):
    tokens = np.array(shares) ** power
    tokens *= total / tokens.sum()
    enough = part * coded_bits(tokens)
    every, some = _offers(tokens, math.inf), _offers(tokens, enough)
    assert set(some) <= set(every)
    assert all(price >= enough for price, _ in set(every) - set(some))
