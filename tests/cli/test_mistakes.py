"""What a user does wrong: exit code 2, a message that begins with 'dovetail: ', no traceback."""

import os
import zipfile

import numpy as np
import pytest
from cli.console import spawn

from dovetail.parts.part import build


def assert_told(said, *words):
    first = said.err.splitlines()[0] if said.err else ""
    assert said.code == 2, said
    assert first.startswith("dovetail: "), said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    for word in words:
        assert word in said.err, said.err


def npz(path, x, y, **more):
    np.savez(path, x=x, y=y, **more)
    return path


def uniform(*shape):
    return np.random.default_rng(1).random(shape, np.float32)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "digitz"], ["unknown task 'digitz'", "did you mean digits"]),
        (["train", "there/is/no.npz"], ["no such file"]),
        (["train", "digits", "--net", "lenet6"], ["unknown builder 'lenet6'", "lenet5"]),
        (["train", "digits", "--set", "nrom=batch"], ["no argument 'nrom'", "did you mean norm"]),
        (["train", "digits", "--set", "norm=bacth"], ["norm"]),
        (["train", "digits", "--net", "mlp", "--set", "hidden=[0]"], ["hidden must be at least 1"]),
        (["train", "digits", "--net", "mlp", "--set", "hidden=many"], ["hidden"]),
        (["train", "digits", "--net", "mlp", "--set", "classes=3"], ["--set classes=10"]),
        (["train", "digits", "--set", "norm"], ["expected name=value, got 'norm'"]),
        (["train", "digits", "--set", "=3"], ["expected name=value"]),
        (["train", "digits", "--device", "cuda:99"], ["device 'cuda:99'"]),
        (["train", "digits", "--device", "abacus"], ["device 'abacus'"]),
        (["train", "digits", "--how", "magic"], ["unknown way to train 'magic'"]),
        (["train", "digits", "mnist"], ["several tasks are for --how compatible"]),
        (["train", "digits~invertd"], ["unknown change '~invertd'", "did you mean ~inverted"]),
        (["train", "digits", "--scheme", "joint"], ["--scheme is an option of --how compatible"]),
        (["train", "digits", "--how", "compatible", "--by", "cdc"], ["did you mean dcc"]),
        (["train", "digits", "--how", "compatible", "--auxiliary", "net"], ["as in dcc=net or rp"]),
        (["train", "digits[0,1]", "digits[2,3]", "--how", "compatible"], ["use --by rp"]),
        (["train", "digits", "--how", "self-supervised", "--by", "turn"], ["rotation"]),
        (["train", "digits", "--how", "compatible", "--at", "a", "--at", "b"], ["--at names 2"]),
        (["train", "digits", "--how", "compatible", "--common", "0,x"], ["'x' of --common"]),
        (["train", "digits", "--how", "compatible", "--channels", str(10**10)], ["out of memory"]),
        (["train", "digits[3]"], ["a task of classes needs two", "only '3' was kept"]),
        (["train", "digits", "--epochs", "0"], ["epochs must be at least 1"]),
        (["train", "digits", "--epochs", "many"], ["invalid int value: 'many'"]),
        (["train", "digits", "--lr", "nan"], ["lr must be a number"]),
        (
            ["train", "digits", "--optimiser", "adma"],
            ["unknown --optimiser 'adma'", "did you mean"],
        ),
        (["train", "digits", "--schedule", "cosin"], ["did you mean cosine"]),
        (["train", "digits", "--augment", "flop"], ["unknown augmentation 'flop'"]),
        (["train", "digits", "--name", "a/b"], ["'a/b' cannot name a part"]),
        (["train", "digits", "--checkpoint-seconds", "-1"], ["--checkpoint-seconds must be"]),
        (["train", "digits", "--from", "nobody"], ["no part 'nobody'"]),
        (["train", "mnist", "--data", "nowhere"], ["'mnist' is not here", "nowhere"]),
        (["train"], ["the following arguments are required: task", "dovetail train --help"]),
        (["cut", "net", "--at", "conv3"], ["conv3", "did you mean"]),
        (["cut", "net@9", "--at", "conv2"], ["'net' has no version 9", "there is 1"]),
        (["cut", "nett", "--at", "conv2"], ["no part 'nett'", "did you mean net"]),
        (["cut", "net@x", "--at", "conv2"], ["net@x"]),
        (["join", "net.front", "other.back"], ["cannot follow", "space"]),
        (["join", "net.back", "net.front", "--force"], ["cannot follow", "shape"]),
        (["join", "net.front", "net.back", "--norms", "bach"], ["unknown --norms 'bach'", "batch"]),
        (["join", "net.front", "net.back", "--norms", "recalibrated"], ["need --task"]),
        (["join", "net.front", "net.back", "--task", "digits"], ["needs 10 numbers an example"]),
        (["predict", "net", "no.npy"], ["no.npy: no such file"]),
        (["predict", "net", "digitz"], ["unknown task 'digitz'"]),
        (["predict", "net.front", "images.npy"], ["not one number a class"]),
        (["predict", "net.back", "images.npy"], ["takes 16×2×2, the inputs are 1×8×8"]),
        (["predict", "net", "images.npy", "--most", "0"], ["--most must be at least 1"]),
        (["predict", "net", "images.npy", "--most", "-2"], ["--most must be at least 1"]),
        (["predict", "nobody", "images.npy"], ["no part 'nobody'"]),
        (["adapt", "net", "digits", "--method", "magic"], ["unknown --method 'magic'", "map"]),
        (["adapt", "net", "digits", "--method", "cg"], ["--method is one of auto, laplace"]),
        (["reuse"], ["required: USE"]),
        (["reuse", "fly"], ["invalid choice: 'fly'"]),
        (["reuse", "domain", "net", "digits"], ["no pretext's head 'rp'"]),
        (["reuse", "domain", "net", "digits", "--rp", "other.back"], ["space"]),
        (["reuse", "replace", "net", "digits"], ["--net resnet8, or --from PART"]),
        (["reuse", "devices", "digits"], ["--net lenet5 --net resnet8"]),
        (["reuse", "extend", "net.back", "digits"], ["required: --front"]),
        (["reuse", "transfer", "net", "digits", "--steps", "few"], ["whole numbers such as 1,10"]),
        (["shelf", "show", "nobody"], ["no part 'nobody'"]),
        (["shelf", "show", "net@4"], ["no version 4"]),
        (["shelf", "rm", "net"], ["names every version"]),
        (["shelf", "rm", "net@7"], ["no version 7"]),
        (["shelf", "add", "nowhere"], ["nowhere: no such folder"]),
        (["shelf", "add", "lenet6"], ["no network is called so; did you mean lenet5"]),
        (["shelf", "add", "shelf"], ["manifest.json"]),
        (["shelf", "verify", "nobody"], ["no part 'nobody'"]),
        (["shelf", "ls", "--shelf", "elsewhere"], ["there is no shelf elsewhere"]),
        (["shelf", "ls", "--shelf", "images.npy"], ["images.npy is not a folder"]),
        (["shelf"], ["required: ACTION"]),
        (["cut", "net", "--shelf", "elsewhere"], ["there is no shelf elsewhere"]),
        (["report"], ["nothing to report"]),
        (["report", "no.json"], ["no.json: no such file"]),
        (["report", "images.npy"], ["images.npy: not readable as JSON"]),
        (["report", "shelf"], ["holds no records"]),
        (["report", "--shelf", "elsewhere"], ["there is no shelf elsewhere"]),
        (["report", "--shelf", "shelf", "-o", "images.npy/page.html"], ["cannot write"]),
        (["demo", "--epochs", "0", "--folder", "tour", "--json"], ["epochs must be at least 1"]),
        (["demo", "--folder", "images.npy"], ["images.npy"]),
        (["fly"], ["invalid choice: 'fly'"]),
        ([], ["the following arguments are required: COMMAND"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_told_in_a_message(at_the_shelf, furnished, words, told):
    before = sorted(path.name for path in (furnished / "shelf").glob("[!.]*"))
    assert_told(at_the_shelf(*words), *told)
    assert sorted(path.name for path in (furnished / "shelf").glob("[!.]*")) == before


def test_unknown_cut_points_name_their_neighbours(at_the_shelf):
    said = at_the_shelf("cut", "net", "--at", "con2")
    assert_told(said, "conv2")


def test_a_misfit_lists_every_reason_and_the_way_out(at_the_shelf):
    said = at_the_shelf("join", "net.front", "other.back")
    lines = said.err.splitlines()
    assert len(lines) > 1
    assert any(line.startswith("  - space") for line in lines)
    assert "force" in said.err


@pytest.mark.parametrize(
    ("x", "y", "told"),
    [
        (uniform(0, 1, 8, 8), np.zeros(0, int), "no samples"),
        (uniform(20, 1, 8, 8), np.zeros(20, int), "there is one class"),
        (uniform(21, 1, 8, 8), np.array([0, 1] * 10 + [2]), "class '2' has one sample"),
        (uniform(20, 1, 8, 8) * np.nan, np.array([0, 1] * 10), "is NaN or infinite"),
        (uniform(20, 1, 8, 8), np.array([0, 1] * 9), "20 inputs but 18 targets"),
        (np.zeros((20, 1, 8, 8), np.int64), np.array([0, 1] * 10), "int64 have no known scale"),
        (uniform(20), np.array([0, 1] * 10), "inputs have shape [20]"),
        (uniform(20, 1, 8, 9), np.array([0, 1] * 10), "square images"),
        (uniform(20, 1, 4, 4), np.array([0, 1] * 10), "size must be at least 8"),
        (np.array(["a"] * 20), np.array([0, 1] * 10), "not numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_no_network_learns_from(run, tmp_path, monkeypatch, x, y, told):
    monkeypatch.chdir(tmp_path)
    assert_told(run("train", npz(tmp_path / "data.npz", x, y), "--epochs", 1), told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.npz"]


def test_data_without_a_test_split_is_refused_before_the_training(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = uniform(20, 1, 8, 8), np.array([0, 1] * 10)
    np.savez("data.npz", x_train=x, y_train=y, x_test=x[:0], y_test=y[:0])
    assert_told(run("train", "data.npz", "--epochs", 10**6), "no test examples")


def damaged_files(folder):
    (folder / "empty.npz").write_bytes(b"")
    (folder / "empty.npy").write_bytes(b"")
    (folder / "text.npz").write_text("not an archive")
    (folder / "text.npy").write_text("not an array")
    np.savez(folder / "whole.npz", x=uniform(4, 1, 8, 8))
    data = (folder / "whole.npz").read_bytes()
    (folder / "half.npz").write_bytes(data[: len(data) // 2])
    np.save(folder / "objects.npy", np.array([{}, None], dtype=object), allow_pickle=True)
    np.savez(folder / "objects.npz", x=np.array([{}, None], dtype=object))
    np.savez(folder / "names.npz", pictures=uniform(4, 1, 8, 8))
    with zipfile.ZipFile(folder / "zipped.npz", "w") as archive:
        archive.writestr("x.npy", b"no array")
    (folder / "folder.npy").mkdir()


@pytest.mark.parametrize(
    "name",
    [
        "empty.npz",
        "empty.npy",
        "text.npz",
        "text.npy",
        "half.npz",
        "objects.npy",
        "objects.npz",
        "names.npz",
        "zipped.npz",
        "folder.npy",
    ],
)
def test_inputs_that_cannot_be_read(run, furnished, tmp_path, name):
    damaged_files(tmp_path)
    said = run("predict", "net", tmp_path / name, "--shelf", furnished / "shelf")
    assert_told(said, str(tmp_path / name))
    if name.endswith(".npz"):
        assert_told(run("train", tmp_path / name, "--shelf", tmp_path / "new"), name)
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (uniform(0, 1, 8, 8), "no inputs"),
        (uniform(5, 1, 8, 7), "takes 1×8×8, the inputs are 1×8×7"),
        (uniform(5, 64), "takes 1×8×8, the inputs are 64"),
        (np.full((5, 1, 8, 8), np.nan), "NaN or infinite"),
        (np.zeros((5, 1, 8, 8), np.int32), "int32 have no known scale"),
        (np.zeros((5, 1, 8, 8), complex), "complex"),
        (np.array(3.0), "no inputs"),
        (np.array(["a", "b"]), "array of numbers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inputs_of_the_wrong_shape_or_dtype(run, furnished, tmp_path, array, told):
    np.save(tmp_path / "x.npy", array)
    for more in ([], ["--most", "3"]):
        said = run("predict", "net", tmp_path / "x.npy", "--shelf", furnished / "shelf", *more)
        assert_told(said, told)


def test_a_file_that_is_no_record(run, tmp_path):
    (tmp_path / "a.json").write_text('{"kind": "stranger"}')
    assert_told(run("report", tmp_path / "a.json"), "not a dovetail record")
    (tmp_path / "a.json").write_text("")
    assert_told(run("report", tmp_path), "not readable as JSON")


def test_a_damaged_part_is_refused_and_verify_says_no(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    build("mlp", hidden=(4,)).save_pretrained("made/net")
    assert run("shelf", "add", "made/net").code == 0
    weights = tmp_path / "shelf" / "net" / "1" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert_told(run("cut", "net", "--at", "hidden1"), "sha256 differs")
    said = run("shelf", "verify", "--json")
    assert said.code == 1
    assert "sha256 differs" in said.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_shelf_that_may_not_be_written(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf").mkdir(mode=0o500)
    build("mlp", hidden=(4,)).save_pretrained("net")
    assert_told(run("shelf", "add", "net"), "cannot")


def test_a_step_that_cannot_be_taken(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("train", "digits", "--set", "norm=batch", "--batch-size", 1, "--epochs", 1)
    assert_told(said, "a training step failed: Expected more than 1 value per channel")


def test_a_training_that_explodes(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run("train", "digits", "--net", "mlp", "--lr", "1e30", "--epochs", 2)
    assert_told(said, "the loss became", "lower the learning rate")
    assert list((tmp_path / "shelf").iterdir()) == []


def test_in_a_process_of_its_own_with_warnings_as_errors(furnished):
    said = spawn("predict", "net", "no.npy", folder=furnished, PYTHONWARNINGS="error")
    assert_told(said, "no.npy: no such file")
    assert len(said.err.splitlines()) == 1
    said = spawn("predict", "net", "images.npy", "--json", folder=furnished, PYTHONWARNINGS="error")
    assert (said.code, said.err) == (0, "")
    assert len(said.json["predictions"]) == 5
