"""Containers that were damaged, and containers that lie: a FormatError, and nothing else."""

from __future__ import annotations

import json
import re
import zlib
from itertools import product

import numpy as np
import pytest
import torch
from pack.lying import HEAD, TAIL, frame, opened, resealed, sealed
from pack.small_blocks import small_blocks
from pack.watched import in_child

from dovetail.core.errors import FormatError
from dovetail.jobs.pack import write_plain
from dovetail.pack import compress, decompress, describe, read, read_header
from dovetail.pack.streams import _number
from dovetail.pack.tensors import raw_bytes


def honest():
    """A small container with every kind of block in it."""
    draw = torch.Generator().manual_seed(0)
    normal = torch.randn(40, 50, generator=draw)
    return {
        "layer.weight": normal,
        "pruned": normal * (torch.rand(40, 50, generator=draw) < 0.1),
        "heavy": (normal * 2).exp(),
        "half": normal.bfloat16(),
        "double": normal.double(),
        "bias": torch.randn(100, generator=draw),
        "equal": torch.ones(30, 30),
        "count": torch.arange(300),
        "flag": torch.tensor([True, False]),
        "nothing": torch.zeros(0, 3),
    }


@pytest.fixture(scope="module", params=["a block each", "many blocks and groups"])
def container(request):
    if request.param == "a block each":
        yield compress(honest(), channels=True, extra_bits=4)
        return
    with small_blocks():
        yield compress(honest(), channels=True, extra_bits=4)


def bits_of(state):
    return {name: (t.dtype, tuple(t.shape), bytes(raw_bytes(t))) for name, t in state.items()}


def test_the_honest_container_is_read(container, request):
    back = decompress(container)
    _, index = opened(container)
    several = "many" in request.node.callspec.id
    assert (len(index["groups"]) > 5) == several
    assert (max(map(len, index["lengths"])) > 5) == several
    assert list(back) == list(honest())
    assert bits_of(decompress(resealed(container, lambda payload, index: None))) == bits_of(back)


# Damage -----------------------------------------------------------------------------------------


def damaged(data, rng):
    """One accident: bits turned, bytes cut off or added, pieces exchanged, doubled or wiped."""
    raw = bytearray(data)
    at, to = sorted(rng.integers(0, len(raw) + 1, 2).tolist())
    kind = rng.integers(0, 8)
    if kind == 0:
        for _ in range(rng.integers(1, 4)):
            raw[rng.integers(0, len(raw))] ^= 1 << rng.integers(0, 8)
    elif kind == 1:
        raw[rng.integers(0, len(raw))] = rng.integers(0, 256)
    elif kind == 2:
        del raw[at:]
    elif kind == 3:
        raw += bytes(rng.integers(0, 256, rng.integers(1, 50), dtype=np.uint8))
    elif kind == 4:
        raw[at:to] = raw[at:to][::-1]
    elif kind == 5:
        length = int(rng.integers(1, 40))
        raw[at : at + length], raw[to : to + length] = raw[to : to + length], raw[at : at + length]
    elif kind == 6:
        raw[at:at] = raw[at:to]
    else:
        raw[at:to] = bytes(to - at)
    return bytes(raw)


def meddled(data, rng):
    """One lie: a number of the index, or a byte of the payload, and every checksum right."""

    def change(payload, index):
        if rng.random() < 0.4 and payload:
            raw = bytearray(payload)
            for _ in range(rng.integers(1, 4)):
                raw[rng.integers(0, len(raw))] = rng.integers(0, 256)
            return bytes(raw)
        place, holder = index, None
        while isinstance(place, list | dict) and len(place):
            keys = list(place) if isinstance(place, dict) else range(len(place))
            holder, key = place, keys[int(rng.integers(0, len(keys)))]
            place = place[key]
        values = [0, 1, -1, 2, 255, 256, 1 << 20, 1 << 40, 1 << 62, 1 << 70, None, "x", [], {}, 1.5]
        holder[key] = values[int(rng.integers(0, len(values)))]
        if isinstance(place, int) and not isinstance(place, bool) and rng.random() < 0.5:
            holder[key] = place + int(rng.integers(-2, 3))
        return None

    try:
        return resealed(data, change)
    except (TypeError, ValueError):  # the groups themselves became nonsense
        payload, index = opened(data)
        change(payload, index)
        return sealed(payload, index)


def survives(data, wanted, *, lies):
    """Whether reading gave a FormatError, or (lies apart) the very same tensors."""
    try:
        found = decompress(data, most_bytes=1 << 20)
    except FormatError:
        return
    assert lies or bits_of(found) == wanted
    assert sum(t.numel() * t.element_size() for t in found.values()) <= 1 << 20


def accidents(container, count, seed):
    wanted, rng = bits_of(decompress(container)), np.random.default_rng(seed)
    for i in range(count):
        if i % 2:
            survives(meddled(container, rng), wanted, lies=True)
        else:
            survives(damaged(container, rng), wanted, lies=False)


def test_a_thousand_accidents(container):
    accidents(container, 500, seed=0)  # and as many for the other container


@pytest.mark.slow
def test_a_hundred_thousand_accidents(container):
    accidents(container, 50_000, seed=1)


def test_every_bit_counts():
    """No byte of a container can change unnoticed."""
    small = compress({"w": torch.randn(20, 20, generator=torch.Generator().manual_seed(0))}, 1, 2)
    wanted = bits_of(decompress(small))
    for at in range(len(small)):
        for bit in (0, 3, 7):
            raw = bytearray(small)
            raw[at] ^= 1 << bit
            with pytest.raises(FormatError):
                decompress(bytes(raw))
    for length in range(len(small)):
        with pytest.raises(FormatError):
            decompress(small[:length])
    assert bits_of(decompress(small)) == wanted


@pytest.mark.parametrize("data", [b"", b"DOVEPACK", b"DOVE" * 9, bytes(100), b"\x80\x04K\x01."])
def test_what_is_no_container(data, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    for look in (lambda: decompress(data), lambda: describe(data), lambda: read_header(path)):
        with pytest.raises(FormatError):
            look()
    with pytest.raises(FormatError, match=str(path)):
        read(path)


# Lies -------------------------------------------------------------------------------------------


def lie(**changes):
    def change(payload, index):
        for name, value in changes.items():
            if callable(value):
                value(index)
            else:
                index[name] = value

    return change


def entry(**values):
    """Change one tensor's columns: ``at`` says which."""

    def change(payload, index):
        at = index["names"].index(values["at"])
        for column, value in values.items():
            if column != "at":
                index[column][at] = value

    return change


LIES = {
    "a shape that is huge": entry(at="layer.weight", shapes=[1 << 40, 50]),
    "a shape beyond all memory": entry(at="equal", shapes=[1 << 62, 1 << 62]),
    "equal elements without end": entry(at="equal", shapes=[1 << 50]),
    "an empty shape beyond all memory": entry(at="nothing", shapes=[0, 1 << 62, 1 << 62]),
    "a negative axis": entry(at="layer.weight", shapes=[-40, -50]),
    "more axes than there are": entry(at="equal", shapes=[1] * 65),
    "a shape of another size": entry(at="layer.weight", shapes=[40, 51]),
    "no such dtype": lie(dtypes=["float128"] * 6),
    "a dtype that cannot be quantised": lie(dtypes=["int64"] * 6),
    "a dtype that is not there": entry(at="bias", dtype=17),
    "no such plan": entry(at="layer.weight", plan=1000),
    "a plan for an exact tensor": entry(at="bias", plan=0),
    "no plan": entry(at="layer.weight", plan=-1),
    "more rows than elements": entry(at="layer.weight", rows=4000),
    "rows that do not divide": entry(at="layer.weight", rows=3),
    "rows of one": entry(at="layer.weight", rows=2000),
    "rows below zero": entry(at="layer.weight", rows=-1),
    "one level": entry(at="layer.weight", levels=1),
    "levels below zero": entry(at="layer.weight", levels=-5),
    "levels beyond the plan": entry(at="layer.weight", levels=60_000),
    "no levels for a plan": entry(at="layer.weight", levels=0),
    "levels without a plan": entry(at="count", levels=4),
    "levels that are none": lie(levels=["many"] * 9),
    "rows of whole numbers": entry(at="count", rows=1),
    "a name twice": entry(at="bias", names="layer.weight"),
    "a name without end": entry(at="bias", names="x" * 5000),
    "no names": lie(names=[]),
    "a column too short": lie(rows=[1]),
    "no lengths": entry(at="bias", lengths=[]),
    "an empty block": entry(at="nothing", lengths=[0]),
    "a negative block": entry(at="bias", lengths=[-5]),
    "a block without end": entry(at="bias", lengths=[1 << 60]),
    "groups that are empty": lie(groups=lambda index: index["groups"].insert(0, [0, 0])),
    "plans of nothing": lie(plans=[[3, "", []]] * 9),
    "plans with tokens without end": lie(plans=[[9, "0" * 512, []]] * 9),
    "plans that peel for ever": lie(plans=[[1, "1", [[False, [0]]]]] * 9),
    "plans of forty bits": lie(plans=[[40, "g" * 9, []]] * 9),
    "plans that are none": lie(plans=[7] * 9),
    "more plans than tensors": lie(plans=lambda index: index["plans"].extend(index["plans"] * 9)),
    "another field": lie(more=1),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(container, name):
    with pytest.raises(FormatError):
        decompress(resealed(container, LIES[name]))


@pytest.mark.parametrize(
    "index",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"names": NaN}', b"[" * 100_000, b"1" * 5000],
)
def test_an_index_that_is_none(container, index):
    payload, _ = opened(container)
    with pytest.raises(FormatError):
        decompress(sealed(payload, index))


@pytest.mark.parametrize("number", [1, 4])
def test_other_formats_are_refused(container, number):
    payload, index = opened(container)
    with pytest.raises(FormatError, match=rf"packed format {number}, this dovetail reads 2 and 3"):
        decompress(sealed(payload, index, number=number))


def test_ranges_that_are_none():
    data = compress({"w": torch.randn(20, 20)}, bits=4)
    for low, high in ((np.nan, 1), (1, np.inf), (-np.inf, 0), (1, 0)):
        ends = np.array([low, high], np.float32).tobytes()
        with pytest.raises(FormatError, match="a range that is none"):
            decompress(resealed(data, lambda payload, index, e=ends: payload[:1] + e + payload[9:]))


def test_truth_values_that_are_neither():
    data = compress({"flag": torch.tensor([True, False])})
    with pytest.raises(FormatError, match="neither"):
        decompress(resealed(data, lambda payload, index: payload[:1] + b"\x02\x00"))


def test_the_limit_is_said_and_can_be_raised():
    data = compress({"w": torch.zeros(400, 400)})
    with pytest.raises(FormatError, match="pass most_bytes=640000"):
        decompress(data, most_bytes=639_999)
    assert decompress(data, most_bytes=640_000)["w"].sum() == 0


# Memory -----------------------------------------------------------------------------------------


def bombs(container):
    """Little containers that would unpack to gigabytes."""
    payload, _ = opened(container)
    yield "a long index", sealed(payload, b" " * (60 << 20))
    hidden = frame(bytes(60 << 20))
    yield "an index that hides its size", sealed(payload, b"", packed=hidden, full=1 << 20)
    boasting = frame(bytes(256 << 20), write_content_size=True)
    yield "an index that boasts", sealed(payload, b"", packed=boasting, full=1000)
    wide = frame(bytes(1 << 20), window_log=27)
    yield "an index with a wide window", sealed(payload, b"", packed=wide, full=1 << 20)
    padding = bytes(range(256)) * 484  # 124 kB
    for items in (b"[],", b"{},", b"1000,"):
        index = b'{"names":[' + items * (2_900_000 // len(items)) + b"0]}"
        yield f"an index of {items!r}", sealed(padding, index, packed=frame(index, window_log=20))
    for name in ("a shape that is huge", "equal elements without end"):
        yield name, resealed(container, LIES[name])
    frames = frame(bytes(256 << 20))
    block = _number(len(frames) * 2 + 1) + frames
    _, index = opened(compress({"i": torch.arange(50)}))
    index["lengths"], index["groups"] = [[len(block)]], [[len(block), zlib.crc32(block)]]
    yield "a block", sealed(block, index)


def test_bombs_fill_no_memory(container):
    for (name, data), most in product(bombs(container), (None, 1 << 20)):
        found = in_child(lambda data=data, most=most: decompress(data, most_bytes=most))
        assert found["raised"] == "FormatError", name
        assert found["megabytes"] <= 16, name
        assert found["seconds"] < 1, name


def test_an_index_takes_no_more_than_the_caller_allows(tmp_path):
    """What a container of two megabytes may usually have, and one who allows less does not want."""
    index = b'{"names":[' + b"[]," * 800_000 + b"0]}"
    data = sealed(bytes(range(256)) * 8192, index, packed=frame(index, window_log=20))
    (tmp_path / "w.dovepack").write_bytes(data)
    usual = in_child(lambda: decompress(data))
    assert (usual["raised"], usual["megabytes"] > 32) == ("FormatError", True)
    for look in (
        lambda: decompress(data, most_bytes=1 << 20),
        lambda: decompress(data, most_bytes=15 << 20),
        lambda: read(tmp_path / "w.dovepack", most_bytes=1 << 20),
        lambda: write_plain(tmp_path / "w.dovepack", tmp_path / "w", most_bytes=1 << 20),
    ):
        found = in_child(look)
        assert "the index alone takes" in found["said"]
        assert "pass most_bytes=" in found["said"]
        assert found["megabytes"] <= 8


def test_an_index_that_is_honest_is_read_within_what_it_says_it_takes():
    state = {f"model.layers.{i}.scale": torch.tensor(float(i)) for i in range(7000)}
    data = compress(state)
    with pytest.raises(FormatError, match="the index alone takes") as refused:
        decompress(data, most_bytes=28_000)
    needed = int(re.search(r"pass most_bytes=(\d+)", str(refused.value))[1])
    assert len(decompress(data, most_bytes=needed)) == 7000


def with_a_hole(path, before, index, *, shrunk=0, full=None, hole=3 << 30):
    """A file whose middle takes no room on disk, and gigabytes once it is read."""
    packed = frame(index)
    size = HEAD + len(before) + hole + len(packed) + TAIL.size
    full = len(index) if full is None else full
    tail = TAIL.pack(zlib.crc32(packed), shrunk or len(packed), full, 2, size, b"DOVE")
    with open(path, "wb") as file:
        file.write(b"DOVEPACK" + before)
        file.seek(hole, 1)
        file.write(packed + tail)


def test_holes_in_files_fill_no_memory(tmp_path):
    _, index = opened(compress({"i": torch.arange(50)}))
    index["lengths"], index["groups"] = [[3 << 30]], [[3 << 30, 0]]
    with_a_hole(tmp_path / "group", b"", json.dumps(index).encode())
    with_a_hole(tmp_path / "index", b"", b"{}", shrunk=3 << 30, full=1000)
    for name in ("group", "index"):
        for look in (read, read_header):
            found = in_child(lambda look=look, name=name: look(tmp_path / name), headroom=1 << 30)
            assert (found["raised"], found["megabytes"] <= 8) == ("FormatError", True), name


def test_many_little_tensors_are_no_bomb():
    state = {f"model.layers.{i}.scale": torch.tensor(float(i)) for i in range(5000)}
    assert len(decompress(compress(state), most_bytes=20_000)) == 5000


def test_no_more_memory_than_there_is():
    """A size within the limit that the machine cannot give is a FormatError too."""
    data = resealed(compress({"w": torch.zeros(400, 400)}), entry(at="w", shapes=[1 << 45]))
    found = in_child(lambda: decompress(data, most_bytes=1 << 60), headroom=1 << 30)
    assert found["raised"] == "FormatError"
    assert "no memory" in found["said"]
