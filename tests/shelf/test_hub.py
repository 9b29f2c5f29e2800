"""Sending and fetching parts: through a stand-in for the package, and through the real one to a
hub on this machine."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from shelf.hub_server import hub_server

from dovetail.cli.main import main
from dovetail.core.errors import FormatError, MissingExtraError, ShelfError
from dovetail.pack.compressing import compress
from dovetail.parts.packed import with_packed
from dovetail.shelf import hub
from dovetail.shelf.store import Shelf

PLAIN = ("manifest.json", "config.json", "model.safetensors", "probe.safetensors", "README.md")


class FakeErrors(types.ModuleType):
    class HFValidationError(ValueError): ...

    class HfHubHTTPError(OSError): ...

    class RepositoryNotFoundError(HfHubHTTPError): ...

    class GatedRepoError(RepositoryNotFoundError): ...

    class RevisionNotFoundError(HfHubHTTPError): ...

    class LocalTokenNotFoundError(OSError): ...

    class LocalEntryNotFoundError(FileNotFoundError): ...


class FakeBars:
    silent = False

    def are_progress_bars_disabled(self):
        return self.silent

    def disable_progress_bars(self):
        self.silent = True

    def enable_progress_bars(self):
        self.silent = False


class FakeHub(types.ModuleType):
    """As much of ``huggingface_hub`` as is used, with repositories that are folders."""

    def __init__(self, root):
        super().__init__("huggingface_hub")
        self.root, self.errors, self.utils = root, FakeErrors("errors"), FakeBars()
        self.token, self.made, self.fails = None, {}, None
        self.loud = []

    def HfApi(self, token=None):
        self.token = token
        return self

    def _begin(self, repo_id):
        self.loud.append(not self.utils.silent)
        if self.fails is not None:
            raise self.fails
        return self.root / repo_id

    def create_repo(self, repo_id, *, private, exist_ok):
        assert exist_ok
        self._begin(repo_id).mkdir(parents=True, exist_ok=True)
        self.made[repo_id] = private
        return f"https://hub/{repo_id}"

    def upload_folder(self, *, repo_id, folder_path, allow_patterns, commit_message):
        for path in folder_path.iterdir():
            if path.name in allow_patterns:
                shutil.copy(path, self._begin(repo_id))

    def snapshot_download(self, repo_id, *, revision, token, allow_patterns, local_dir):
        self.token = token
        folder = self._begin(repo_id)
        if not folder.is_dir():
            raise self.errors.RepositoryNotFoundError(f"404 for {repo_id}\nmore")
        if revision not in (None, "main"):
            raise self.errors.RevisionNotFoundError("404")
        for path in folder.iterdir():
            if path.name in allow_patterns:
                shutil.copy(path, local_dir)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    fake = FakeHub(tmp_path / "hub")
    for name, module in (("", fake), (".errors", fake.errors), (".utils", fake.utils)):
        monkeypatch.setitem(sys.modules, f"huggingface_hub{name}", module)
    return fake


def test_a_part_goes_and_comes_back_the_same(fake, tiny):
    assert hub.push(tiny(), "me/net", token="secret") == "https://hub/me/net"
    assert (fake.made, fake.token) == ({"me/net": True}, "secret")
    back = hub.pull("me/net", token="other")
    assert fake.token == "other"
    assert (back.digest, back.contract, back.origin) == (
        tiny().digest,
        tiny().contract,
        tiny().origin,
    )


def test_the_folder_on_the_shelf_goes_as_it_is(fake, shelf, tiny):
    entry = shelf.add(tiny(), "net")
    (entry.folder / "extra.bin").write_text("of someone else")
    hub.push("net@1", "me/net", shelf=shelf, private=False)
    assert fake.made == {"me/net": False}
    sent = {path.name: path.read_bytes() for path in (fake.root / "me" / "net").iterdir()}
    assert sent == {name: (entry.folder / name).read_bytes() for name in PLAIN}


def test_a_packed_part_goes_and_comes_back_packed(fake, tiny):
    small = with_packed(tiny(), compress(tiny().module.state_dict(), lossless=("*",)))
    hub.push(small, "me/small")
    assert (fake.root / "me" / "small" / "model.dovepack").read_bytes() == small.packed
    assert hub.pull("me/small").packed == small.packed


def test_a_reference_needs_a_shelf_and_a_part_that_is_whole(fake, shelf, tiny):
    with pytest.raises(ShelfError, match="'net' is a reference; say on which shelf"):
        hub.push("net", "me/net")
    with pytest.raises(ShelfError, match="no part 'net'"):
        hub.push("net", "me/net", shelf=shelf.folder)
    weights = shelf.add(tiny(), "net").folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.raises(FormatError, match="sha256"):
        hub.push("net", "me/net", shelf=shelf)
    assert fake.made == {}


def test_only_files_of_a_part_are_fetched(fake, tiny, monkeypatch):
    hub.push(tiny(), "me/net")
    (fake.root / "me" / "net" / "pytorch_model.bin").write_text("a pickle, say")
    seen = []
    real = hub.from_pretrained

    def watched(folder, **more):
        seen.extend(sorted(path.name for path in Path(folder).iterdir()))
        return real(folder, **more)

    monkeypatch.setattr(hub, "from_pretrained", watched)
    hub.pull("me/net")
    assert seen == sorted(PLAIN)


def test_what_was_changed_on_the_way_is_refused(fake, tiny):
    hub.push(tiny(), "me/net")
    path = fake.root / "me" / "net" / "config.json"
    path.write_text(path.read_text().replace("mlp", "mlq"))
    with pytest.raises(
        FormatError, match=r"^the part in 'me/net' is damaged: config\.json: sha256"
    ):
        hub.pull("me/net")


def test_a_repository_without_a_part_is_told(fake):
    (fake.root / "me" / "bert").mkdir(parents=True)
    (fake.root / "me" / "bert" / "config.json").write_text("{}")
    with pytest.raises(ShelfError, match=r"'me/bert' holds no part \(no manifest\.json\)"):
        hub.pull("me/bert")
    with pytest.raises(ShelfError, match="no repository 'me/none' on the hub"):
        hub.pull("me/none")
    with pytest.raises(ShelfError, match="'me/bert' has no revision 'v9'"):
        hub.pull("me/bert", revision="v9")


class ConnectError(Exception):
    """What an HTTP library that is not ours calls it."""


FAILURES = {
    "HFValidationError": "cannot name a repository",
    "GatedRepoError": "owner's permission",
    "LocalTokenNotFoundError": "hf auth login",
    "HfHubHTTPError": "the hub refuses for 'me/net': 403 Forbidden$",
    "LocalEntryNotFoundError": "is there a network",
    ConnectError: "is there a network",
    TimeoutError: "is there a network",
    ZeroDivisionError: "sharing 'me/net' failed: ZeroDivisionError: 403 Forbidden$",
}


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_every_failure_is_one_line(fake, tiny, failure):
    kind = getattr(fake.errors, failure) if isinstance(failure, str) else failure
    fake.fails = kind("403 Forbidden\nand a page of HTML")
    for share in (lambda: hub.push(tiny(), "me/net"), lambda: hub.pull("me/net")):
        with pytest.raises(ShelfError, match=FAILURES[failure]) as caught:
            share()
        assert "\n" not in str(caught.value)


def test_no_bars_in_a_pipe_and_bars_as_before_afterwards(fake, tiny, monkeypatch):
    hub.push(tiny(), "me/net")
    assert not any(fake.loud)
    assert not fake.utils.silent
    fake.loud.clear()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    hub.pull("me/net")
    assert all(fake.loud)


def test_without_the_package_the_extra_is_named(shelf, tiny, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r'pip install "dovetail\[hub\]"'):
        hub.pull("me/net")
    shelf.add(tiny(), "net")
    assert main(["shelf", "push", "net", "me/net", "--shelf", str(shelf.folder)]) == 2
    assert capsys.readouterr().err.startswith("dovetail: Sharing parts on a hub needs")


def test_the_commands(fake, shelf, tiny, capsys):
    shelf.add(tiny(), "net")
    at = ["--shelf", str(shelf.folder), "--json"]
    assert main(["shelf", "push", "net", "me/net-of-mine", "--public", *at]) == 0
    assert json.loads(capsys.readouterr().out)["address"] == "https://hub/me/net-of-mine"
    assert fake.made == {"me/net-of-mine": False}
    assert main(["shelf", "pull", "me/net-of-mine", "--tag", "gift", *at]) == 0
    assert json.loads(capsys.readouterr().out)["ref"] == "net-of-mine@1"
    assert main(["shelf", "pull", "me/net-of-mine", "--name", "mine", *at]) == 0
    assert [entry.ref for entry in shelf] == ["mine@1", "net@1", "net-of-mine@1"]
    assert shelf.entry("net-of-mine").tags == ("gift",)
    assert main(["shelf", "pull", "me/none", *at]) == 2
    assert capsys.readouterr().err.count("\n") == 1


REAL = """
import sys
import torch
torch.set_num_threads(1)
from dovetail.cli.main import main
for arguments in sys.argv[1:]:
    print(main(["shelf", *arguments.split(), "--shelf", "shelf"]), file=sys.stderr)
"""


def test_the_real_package_and_a_hub_on_this_machine(shelf, tiny, tmp_path):
    pytest.importorskip("huggingface_hub")
    entry = shelf.add(tiny(), "net")
    with hub_server() as server:
        server.repos["me/bert"] = {"config.json": b"{}", "pytorch_model.bin": b"a pickle, say"}
        own = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_x"}
        done = subprocess.run(
            [
                *(sys.executable, "-c", REAL, "push net me/net", "pull me/net --name gift"),
                *("pull me/none", "pull me/net --revision v9", "pull me/bert", "pull me//net"),
            ],
            cwd=tmp_path,
            env={**os.environ, **own, "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert server.repos["me/net"] == {
            name: (entry.folder / name).read_bytes() for name in PLAIN
        }
        assert server.made["me/net"].get("visibility", "private") == "private"
        assert "pytorch_model.bin" not in server.fetched
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.isdecimal()] == ["0", "0", "2", "2", "2", "2"], lines
    told = [line for line in lines if not line.isdecimal()]
    for line, words in zip(
        told, ("no repository", "no revision 'v9'", "holds no part", "cannot name"), strict=True
    ):
        assert line.startswith("dovetail: ")
        assert words in line
    assert Shelf(shelf.folder).get("gift@1", verify=True).digest == tiny().digest


def test_the_real_package_without_a_network(tmp_path):
    pytest.importorskip("huggingface_hub")
    own = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": "hf_x"}
    done = subprocess.run(
        [sys.executable, "-c", REAL, "pull me/net"],
        cwd=tmp_path,
        env={**os.environ, **own, "HF_HUB_DISABLE_TELEMETRY": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == "dovetail: cannot reach the hub for 'me/net': is there a network?\n2\n"
