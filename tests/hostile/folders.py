"""Tricks with a part's folder: files in disguise, hashes, names and JSON."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile

import torch
from hostile.liar import (
    CARD,
    CONFIG,
    CONTAINER,
    GIGABYTE,
    MANIFEST,
    PROBE,
    WEIGHTS,
    Bomb,
    Tricks,
    arguments,
    edit_json,
    pack_folder,
    put,
    vouch,
)

TRICKS = Tricks()
trick, several = TRICKS.one, TRICKS.several

# Pickles and archives in disguise -----------------------------------------------------------------


@trick("not a safetensors file")
def torch_archive_as_weights(folder, canary):
    torch.save({"head.weight": Bomb(canary)}, folder / WEIGHTS)
    vouch(folder)


@trick("not a safetensors file")
def old_torch_file_as_weights(folder, canary):
    torch.save(
        {"head.weight": Bomb(canary)}, folder / WEIGHTS, _use_new_zipfile_serialization=False
    )
    vouch(folder)


@trick("not a safetensors file")
def bare_pickle_as_weights(folder, canary):
    put(folder, WEIGHTS, pickle.dumps(Bomb(canary)))


@trick("not a safetensors file")
def zip_as_weights(folder, canary):
    with zipfile.ZipFile(folder / WEIGHTS, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Bomb(canary)))
    vouch(folder)


@trick("the probe cannot be replayed")
def pickle_as_probe(folder, canary):
    torch.save({"input.0": Bomb(canary)}, folder / PROBE)
    vouch(folder)


@several("not readable as JSON", config=CONFIG, manifest=MANIFEST)
def pickle_as(folder, canary, name):
    put(folder, name, pickle.dumps(Bomb(canary)))


@trick("no such file")
def pickles_under_the_usual_names(folder, canary):
    for name in ("pytorch_model.bin", "model.pth", "data.pkl", "training_args.bin"):
        torch.save(Bomb(canary), folder / name)
    (folder / MANIFEST).unlink()


@trick("no such folder")
def a_zip_in_place_of_the_folder(folder, canary):
    archive = shutil.make_archive(str(folder), "zip", folder)
    shutil.rmtree(folder)
    os.rename(archive, folder)


# Hashes and names ---------------------------------------------------------------------------------


@trick("sha256 differs")
def one_flipped_bit(folder, canary):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)


@trick("digest differs")
def one_flipped_bit_and_a_new_hash(folder, canary):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    put(folder, WEIGHTS, data)


@several("sha256 differs", empty="", short="00", upper="F" * 64, long="0" * 1_000_000)
def lying_hash(folder, canary, value):
    edit_json(folder / MANIFEST, lambda m: m["files"][CONFIG].update(sha256=value))


@trick("digest differs")
def lying_digest(folder, canary):
    edit_json(folder / MANIFEST, lambda m: m.update(digest="0" * 64))


@several("the manifest says", less=1, negative=-1, more=10 * GIGABYTE, bignum=10**300)
def lying_size(folder, canary, size):
    edit_json(folder / MANIFEST, lambda m: m["files"][WEIGHTS].update(size=size))


@several(
    "is not a file of a part",
    upward="../secret",
    absolute="/etc/passwd",
    detour="config.json/../x",
    same_by_detour="../part/config.json",
    dot="./config.json",
    backslash="..\\config.json",
    null="config.json\0.png",
    script="setup.py",
    empty="",
    long="x" * 1_000_000,
)
def manifest_lists(folder, canary, name):
    edit_json(folder / MANIFEST, lambda m: m["files"].update({name: m["files"][CONFIG]}))


@several("plain file", config=CONFIG, weights=WEIGHTS, probe=PROBE, manifest=MANIFEST)
def link_in_place_of(folder, canary, name):
    elsewhere = folder.with_name(folder.name + "-elsewhere")
    os.rename(folder / name, elsewhere)
    (folder / name).symlink_to(elsewhere)


@several("plain file", config=CONFIG, weights=WEIGHTS, manifest=MANIFEST)
def link_to_the_zero_device(folder, canary, name):
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/zero")


@several("plain file", config=CONFIG, weights=WEIGHTS, probe=PROBE, manifest=MANIFEST)
def pipe_in_place_of(folder, canary, name):
    (folder / name).unlink()
    os.mkfifo(folder / name)


@several("", config=CONFIG, weights=WEIGHTS, manifest=MANIFEST)
def folder_in_place_of(folder, canary, name):
    (folder / name).unlink()
    (folder / name).mkdir()


@trick("plain file")
def link_to_a_folder(folder, canary):
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(folder)


@trick("plain file")
def link_to_itself(folder, canary):
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to(MANIFEST)


@several("", config=CONFIG, weights=WEIGHTS, probe=PROBE, card=CARD, container=CONTAINER)
def ten_terabytes_that_the_manifest_vouches_for(folder, canary, name):
    """A file of holes; its hash would take hours, so whatever the manifest says will do."""
    size = 10 * 1024 * GIGABYTE
    if name == CONTAINER:
        pack_folder(folder)
    os.truncate(folder / name, size)
    edit_json(folder / MANIFEST, lambda m: m["files"][name].update(size=size))


@trick("and this machine has")
def ten_terabytes_that_the_recipe_asks_for(folder, canary):
    hidden = [1_500_000, 1_500_000]
    edit_json(folder / CONFIG, lambda config: config["recipe"]["args"].update(hidden=hidden))
    size = 4 * (1_500_000**2 + 9 * 1_500_000 + 3) + 500
    vouch(folder)
    os.truncate(folder / WEIGHTS, size)
    edit_json(folder / MANIFEST, lambda m: m["files"][WEIGHTS].update(size=size))


@trick("is not a file of a part")
def manifest_lists_a_thousand_files(folder, canary):
    def change(manifest):
        for i in range(1000):
            (folder / f"{i}.bin").write_bytes(b"x" * 1000)
            manifest["files"][f"{i}.bin"] = {"sha256": "0" * 64, "size": 1000}

    edit_json(folder / MANIFEST, change)


# JSON ---------------------------------------------------------------------------------------------


@several(
    "not readable as JSON",
    deep=b"[" * 100_000 + b"]" * 100_000,
    deep_objects=b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    as_deep_as_python_reads=b"[" * 900 + b"]" * 900,
    long_number=b'{"format": ' + b"9" * 1_000_000 + b"}",
    infinite=b'{"format": Infinity}',
    latin1='{"format": "é"}'.encode("latin-1"),
    utf16='{"format": 1}'.encode("utf-16"),
    byte_order_mark=b"\xef\xbb\xbf{}",
    half_a_pair=b'{"format": "\\ud800"}',
    null_bytes=b"\0" * 1000,
    twice=b'{"format": 1, "format": 1}',
)
def manifest_is(folder, canary, data):
    put(folder, MANIFEST, data)


@trick("is there twice")
def key_twice_in_config(folder, canary):
    text = (folder / CONFIG).read_text()
    put(
        folder, CONFIG, text.replace('"recipe":', '"recipe": {"build": "x"}, "recipe":', 1).encode()
    )


@trick("nested deeper")
def deep_argument(folder, canary):
    value = []
    for _ in range(300):
        value = [value]
    arguments(folder, hidden=value)


@trick("more than a file of ours")
def long_json(folder, canary):
    put(folder, CONFIG, b" " * (5 << 20))


@trick("more than a file of ours")
def sparse_json(folder, canary):
    with open(folder / MANIFEST, "r+b") as file:
        file.truncate(10 * GIGABYTE)


@trick("part format 2")
def newer_format(folder, canary):
    edit_json(folder / MANIFEST, lambda m: m.update(format=2))


@trick("unknown field")
def unknown_field_of_a_megabyte(folder, canary):
    edit_json(folder / MANIFEST, lambda m: m.update({"x" * 1_000_000: 1}))


@trick("unknown dtype")
def dtype_that_is_a_function(folder, canary):
    edit_json(folder / CONFIG, lambda c: c["contract"]["takes"][0].update(dtype="load"))
    vouch(folder)


@trick("the contract says 1000000000000")
def contract_of_another_shape(folder, canary):
    edit_json(folder / CONFIG, lambda c: c["contract"]["takes"][0].update(shape=[10**12]))
    vouch(folder)
