"""Whatever goes in comes out: names, order, shapes, dtypes, and every bit that was promised."""

from __future__ import annotations

import hashlib
import io
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pack.small_blocks import small_blocks
from pack.watched import in_child, peak

from dovetail.core.errors import DovetailError, FormatError, SettingsError, TaskError
from dovetail.core.records import load_record
from dovetail.pack import compress, decompress, describe, read, read_header, write
from dovetail.pack import threads as working
from dovetail.pack.coding import BLOCK
from dovetail.pack.compressing import stream
from dovetail.pack.decompressing import Source, opened, tensors
from dovetail.pack.rules import Rules
from dovetail.pack.tensors import DTYPES, FLOATING, raw_bytes
from dovetail.pack.threads import LARGEST, _own, scratch

SHAPES = [(), (0,), (1,), (7,), (0, 3), (3, 0, 2), (1, 1, 1), (17, 19), (4, 3, 5, 5), (2, 300)]


def noise(shape, dtype, seed=0):
    """Elements of every bit pattern, or random numbers where they will be quantised."""
    draw = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(shape, generator=draw) > 0.5
    if dtype in FLOATING:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
    size = (*shape, dtype.itemsize)
    raw = torch.randint(0, 256, size, generator=draw, dtype=torch.uint8)
    return raw.view(dtype).reshape(shape) if raw.numel() else torch.empty(shape, dtype=dtype)


@contextmanager
def threads_of(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and bytes(raw_bytes(a)) == bytes(raw_bytes(b))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_and_shape_comes_back(dtype):
    state = {f"t{shape}": noise(shape, dtype) for shape in SHAPES}
    back = decompress(compress(state, lossless=["*"]))
    assert list(back) == list(state)
    assert all(same(back[name], state[name]) for name in state)
    lossy = decompress(compress(state))
    for name, tensor in state.items():
        assert (lossy[name].dtype, lossy[name].shape) == (tensor.dtype, tensor.shape)
        if dtype in FLOATING and tensor.numel() >= 256:
            span = float(tensor.double().max() - tensor.double().min())
            rounding = float(torch.finfo(dtype).eps * tensor.double().abs().max()) / 2
            error = (lossy[name].double() - tensor.double()).abs().max()
            assert 0 < error <= span / 2**8 + rounding  # the rule gives at least eight bits here
        else:
            assert same(lossy[name], tensor)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 9), max_size=4),
            st.integers(0, 10**6),
        ),
        max_size=4,
    ),
    st.booleans(),
    st.integers(1, 16),
)
@settings(max_examples=60, deadline=None)
def test_any_state_comes_back_within_half_a_step(described, channels, bits):
    state = {
        f"{i}.{dtype}": noise(tuple(shape), DTYPES[dtype], seed)
        for i, (dtype, shape, seed) in enumerate(described)
    }
    data = compress(state, bits=bits, channels=channels, smallest=20)
    back = decompress(data)
    assert list(back) == list(state)
    for found in describe(data).tensors:
        tensor, came = state[found.name], back[found.name]
        assert (came.dtype, came.shape) == (tensor.dtype, tensor.shape)
        if found.bits is None:
            assert same(came, tensor)
            continue
        span = float(tensor.double().max() - tensor.double().min())
        rounding = float(torch.finfo(tensor.dtype).eps * tensor.double().abs().max())
        error = float((came.double() - tensor.double()).abs().max())
        steps = max(1, (found.levels or 2) - 1)
        assert error <= 0.51 * span / steps + rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_symbols_are_exact_through_blocks_rows_and_threads(dtype):
    """What is decoded are exactly the levels that the quantiser chose."""
    from dovetail.pack.quantise import Grid, low_and_high

    for shape, channels in (((3, BLOCK + 17), False), ((3, BLOCK + 17), True), ((700, 600), True)):
        tensor = noise(shape, dtype)
        matrix = tensor if channels else tensor.reshape(1, -1)
        data = compress({"w": tensor}, bits=9, channels=channels)
        grid = Grid(512, *low_and_high(matrix))
        symbols = grid.symbols(matrix.numpy())
        back = decompress(data)["w"].reshape(matrix.shape)
        assert (back.numpy() == grid.values(symbols)).all()
        assert (grid.symbols(back.numpy()) == symbols).all()


def test_the_same_bytes_whatever_the_threads(monkeypatch):
    many = noise((3, BLOCK - 5), torch.float32)
    zeros = torch.rand(1024, 512)
    zeros.view(-1)[::37], zeros.view(-1)[5::41] = 0.0, -0.0  # either is the smallest
    pruned = many[:2] * (torch.rand(2, BLOCK - 5) < 0.02)
    state = {"w": many, "zeros": zeros, "pruned": pruned, "half": many.bfloat16()}
    state["i"] = torch.arange(2 * BLOCK + 9)
    digests, started = set(), []
    made = working.ThreadPoolExecutor
    monkeypatch.setattr(working, "ThreadPoolExecutor", lambda *a: started.append(a) or made(*a))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            data = compress(state, bits=6)
            digests.add(hashlib.sha256(data).hexdigest())
            back = decompress(data)
            digests.add(hashlib.sha256(b"".join(raw_bytes(t) for t in back.values())).hexdigest())
            assert same(back["i"], state["i"])
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 2
    assert [workers for workers, _ in started] == [2, 2, 5, 5]


def test_blocks_of_any_size_hold_the_same():
    state = {name: noise((37, 90), dtype, 1) for name, dtype in DTYPES.items() if dtype in FLOATING}
    state |= {"pruned": noise((60, 70), torch.float32) * (torch.rand(60, 70) < 0.05)}
    state |= {"count": torch.arange(5000), "rows": noise((3, 1500), torch.float32)}
    for settings_ in ({"channels": True}, {"bits": 11}, {"extra_bits": 2}):
        wanted = decompress(compress(state, **settings_))
        for threads in (1, 3):
            with small_blocks(), threads_of(threads):
                found = decompress(compress(state, **settings_))
            assert all(same(found[name], wanted[name]) for name in wanted)


def test_views_tied_and_requiring_tensors():
    base = noise((40, 60), torch.float32).requires_grad_()
    state = {"a": base, "tied": base, "turned": base.t(), "some": base[::2, 1::3]}
    state |= {"wide": torch.randn(1, 30).expand(30, 30), "conj": torch.randn(20, 20) + 1j}
    state["conj"] = state["conj"].conj()
    back = decompress(compress(state, lossless=["*"]))
    for name, tensor in state.items():
        assert torch.equal(back[name], tensor)
        assert not back[name].requires_grad
    lossy = decompress(compress(state))
    assert torch.equal(lossy["a"], lossy["tied"])
    assert torch.equal(lossy["turned"], lossy["a"].t())


def test_two_names_of_one_tensor_get_the_same_bits_whatever_the_draw():
    # Two bits of entropy, to the digit: what is sampled decides between two and three.
    weights = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]).repeat(5_000).reshape(200, 200)
    for seed in range(30):
        data = compress({"one": weights, "other": weights}, seed=seed)
        assert len({tensor.bits for tensor in describe(data).tensors}) == 1


def test_memory_is_filled_once_and_only_if_it_can_be():
    state = {"a": torch.randn(20, 30), "b": torch.randn(20, 30), "c": torch.randn(20, 30)}
    data = compress(state, bits=5)
    wanted = decompress(data)
    shared = torch.zeros(700)
    into = {"a": shared[:600].view(20, 30), "b": shared[100:].view(20, 30)}  # one in the other
    into["c"] = torch._neg_view(torch.zeros(20, 30))
    found = decompress(data, into=into)
    assert all(torch.equal(found[name], wanted[name]) for name in state)
    assert found["a"].data_ptr() == shared.data_ptr()
    apart = {"a": shared[:600].view(20, 30), "b": torch.zeros(20, 30).T, "c": torch.zeros(20, 30)}
    again = decompress(data, into=apart)
    assert torch.equal(apart["a"], wanted["a"])
    assert torch.equal(apart["c"], wanted["c"])
    assert torch.equal(again["b"], wanted["b"])
    assert not bool(apart["b"].any())


def test_scratch_memory_is_no_larger_than_a_block():
    assert scratch("test", LARGEST, np.uint8).base is not None
    assert scratch("test", LARGEST + 1, np.uint8).base is None
    compress({"w": torch.zeros(2, LARGEST + 99).normal_()}, bits=4, channels=True)
    kept = [value for value in vars(_own).values() if isinstance(value, np.ndarray)]
    assert kept
    assert max(map(len, kept)) <= LARGEST


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_refused_by_name_or_kept_exactly(value):
    tensor = torch.randn(30, 30)
    tensor[3, 4] = value
    with pytest.raises(TaskError, match=r"'net\.w'.*lossless=\('net\.w',\)"):
        compress({"net.w": tensor})
    assert same(decompress(compress({"net.w": tensor}, lossless=("net.w",)))["net.w"], tensor)
    small = tensor[3:5, 3:6].clone()
    assert same(decompress(compress({"w": small}))["w"], small)


def test_equal_and_undividable_tensors():
    wide = torch.rand(20, 20, dtype=torch.float64)
    wide[:, 0], wide[:, 1] = -1.7e308, 1.7e308
    narrow = torch.zeros(20, 20, dtype=torch.float64)
    narrow[:, 0] = 5e-324
    state = {
        "equal": torch.full((50, 50), 0.1),
        "equal half": torch.full((50, 50), 0.1, dtype=torch.bfloat16),
        "equal rows": torch.arange(20.0)[:, None].expand(20, 30),
        "wide": wide,
        "narrow": narrow,
    }
    packed = describe(compress(state, channels=True))
    assert [t.bits for t in packed.tensors] == [0, 0, 0, None, None]
    back = decompress(compress(state, channels=True))
    assert all(torch.equal(back[name], state[name]) for name in state)
    assert torch.equal(decompress(compress(state))["equal"], state["equal"])


def test_nothing_at_all():
    assert decompress(compress({})) == {}
    assert describe(compress({})).ratio == 0


@pytest.mark.parametrize(
    ("state", "error", "says"),
    [
        ({"w": [1.0]}, TaskError, "a list, not a tensor"),
        ({"w": torch.eye(3).to_sparse()}, TaskError, "to_dense"),
        ({"w": torch.empty(3, device="meta")}, TaskError, "meta device"),
        ({3: torch.eye(3)}, SettingsError, "no name"),
        ({"x" * 2000: torch.eye(3)}, SettingsError, "no name"),
        ({"\ud800": torch.eye(3)}, SettingsError, "no name"),
        ([("w", torch.eye(3)), ("w", torch.eye(3))], SettingsError, "two tensors"),
    ],
)
def test_what_cannot_be_packed(state, error, says):
    with pytest.raises(error, match=says):
        compress(state)


def test_odd_names_come_back():
    state = {name: torch.eye(2) for name in ("", "gewichte.größe", "層/1", 'a"b\\c', "\n", "🜁")}
    assert list(decompress(compress(state))) == list(state)


# Files ------------------------------------------------------------------------------------------


def test_a_file_holds_the_same_bytes(tmp_path):
    state = {"w": noise((600, 700), torch.float32), "b": torch.randn(30), "n": torch.tensor(7)}
    path = tmp_path / "new" / "weights.dovepack"
    made = write(path, iter(state.items()), extra_bits=4)
    data = path.read_bytes()
    assert data == compress(state, extra_bits=4)
    assert made.size == len(data)
    assert read_header(path) == {
        "w": ("float32", (600, 700)),
        "b": ("float32", (30,)),
        "n": ("int64", ()),
    }
    back, there = read(path), decompress(data)
    assert all(same(back[name], there[name]) for name in there)
    looked = describe(path)
    assert looked.size == made.size
    assert looked.side == made.side
    assert [t.bits for t in looked.tensors] == [t.bits for t in made.tensors]
    assert load_record(made.save(tmp_path / "made.json")) == made
    assert looked.view()


def test_what_fails_leaves_nothing_behind(tmp_path):
    def broken():
        yield "w", torch.randn(100, 100)
        raise RuntimeError("the disk of others")

    (tmp_path / "w.dovepack").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="of others"):
        write(tmp_path / "w.dovepack", broken())
    with pytest.raises(SettingsError):
        write(tmp_path / "w.dovepack", {"w": torch.eye(3)}, bits={"v": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["w.dovepack"]
    assert (tmp_path / "w.dovepack").read_bytes() == b"old"


def test_files_that_are_none(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        for look in (read, read_header, describe):
            with pytest.raises(FormatError, match=str(path)):
                look(path)
    with pytest.raises(SettingsError, match="takes a file"):
        decompress(str(tmp_path))


def test_errors_are_relative_to_the_original():
    state = {"w": noise((100, 100), torch.float32)}
    data = compress(state, bits=6)
    expected, measured = describe(data).tensors[0], describe(data, state).tensors[0]
    back = decompress(data)["w"]
    assert measured.error == pytest.approx(
        float((back - state["w"]).norm() / back.norm()), rel=1e-5
    )
    assert expected.error == pytest.approx(measured.error, rel=0.1)
    counts = np.unique(back.numpy(), return_counts=True)[1] / back.numel()
    assert measured.entropy == pytest.approx(-(counts * np.log2(counts)).sum())


def test_side_information_is_under_one_percent():
    from dovetail.parts.part import build

    state = build("resnet20", classes=10).module.state_dict()
    for bits in (None, 4):
        packed = describe(compress(state, bits=bits))
        assert packed.side < 0.01 * packed.size
        ideal = sum(t.entropy * t.elements for t in packed.tensors if t.bits)
        coded = sum(t.coded * t.elements for t in packed.tensors if t.bits)
        assert coded <= 1.03 * ideal  # few levels, all about as common: whole bits are too many


def test_one_tensor_at_a_time_is_held(tmp_path):
    """A generator of many tensors passes through memory for a few of them."""
    base = torch.randn(1000, 1000)  # four megabytes

    def through(many):
        write(tmp_path / "many", ((f"t{i}", base * i) for i in range(many)))
        with opened(tmp_path / "many") as source:
            return sum(tensor.numel() for _, tensor in tensors(source))

    def growth():
        through(10)
        before = peak()
        assert through(40) == 40 * base.numel()
        return peak() - before

    assert in_child(growth)["gave"] < 50  # of 160 megabytes written and 160 read


def test_streams_and_sources_of_memory_agree():
    state, sink = {"w": noise((50, 50), torch.float32)}, io.BytesIO()
    entries = stream(sink, state, Rules())
    source = Source.of(sink.getvalue())
    assert list(source.index.entries) == entries
    assert [name for name, _ in tensors(source)] == ["w"]
    assert issubclass(FormatError, DovetailError)


def test_given_tensors_are_filled():
    state = {"w": torch.randn(300, 300), "b": torch.randn(7), "n": torch.arange(5)}
    data = compress(state)
    fresh = decompress(data)
    into = {"w": torch.zeros(300, 300), "b": torch.zeros(7).double(), "n": torch.zeros(5).long()}
    filled = decompress(data, into=into)
    assert all(torch.equal(filled[name], fresh[name]) for name in state)
    assert filled["w"].data_ptr() == into["w"].data_ptr()
    assert filled["n"].data_ptr() == into["n"].data_ptr()
    assert filled["b"].dtype == torch.float32  # another dtype is left alone
    assert not into["b"].any()
