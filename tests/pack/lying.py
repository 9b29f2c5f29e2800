"""Containers taken apart, changed, and put together again with checksums that are right."""

from __future__ import annotations

import json
import struct
import zlib

import zstandard

TAIL = struct.Struct("<IIIIQ4s")
HEAD = 8


def frame(data, *, level=3, **settings):
    made = zstandard.ZstdCompressionParameters.from_level(
        level,
        **{"write_content_size": False, "format": zstandard.FORMAT_ZSTD1_MAGICLESS} | settings,
    )
    return zstandard.ZstdCompressor(compression_params=made).compress(data)


def opened(data):
    """The payload and the index of a container."""
    _, shrunk, full, _, _, _ = TAIL.unpack(data[-TAIL.size :])
    packed = data[len(data) - TAIL.size - shrunk : -TAIL.size]
    reader = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    index = json.loads(reader.decompress(packed, max_output_size=full))
    return data[HEAD : len(data) - TAIL.size - shrunk], index


def sealed(payload, index, *, full=None, number=3, packed=None):
    """A container of this payload and index, whatever they say."""
    plain = index if isinstance(index, bytes) else json.dumps(index).encode()
    packed = frame(plain) if packed is None else packed
    size = HEAD + len(payload) + len(packed) + TAIL.size
    full = len(plain) if full is None else full
    tail = TAIL.pack(zlib.crc32(packed), len(packed), full, number, size, b"DOVE")
    return b"DOVEPACK" + payload + packed + tail


def resealed(data, change):
    """The container after ``change(payload, index)``, which may return another payload."""
    payload, index = opened(data)
    payload = change(payload, index) or payload
    at, groups = 0, []
    for size, _ in index["groups"]:  # the checksums are made right again
        groups.append([size, zlib.crc32(payload[at : at + size])])
        at += size
    index["groups"] = groups
    return sealed(payload, index)
