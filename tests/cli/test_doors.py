"""The parser: help without torch, an example with each command, clean pipes."""

import shlex
import signal
import subprocess
import sys
import time

import pytest
from cli.console import COMMAND, environment
from forked import PATIENCE

from dovetail.cli import main as door
from dovetail.cli.common import key_value
from dovetail.settings.train import WAYS

COMMANDS = list(door._COMMANDS)


def test_help_needs_no_torch():
    code = (
        "import sys; from dovetail.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'rich', 'safetensors'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(run, command):
    said = run(command, "--help")
    assert said.code == 0
    assert f"example:\n  dovetail {command}" in said.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_parses(command):
    module = __import__(f"dovetail.cli.{command}", fromlist=["EXAMPLE"])
    for line in module.EXAMPLE.splitlines():
        name, *words = shlex.split(line)
        assert name == "dovetail"
        assert door._parser().parse_args(words).run is module.run


@pytest.mark.parametrize("action", ["ls", "show", "add", "rm", "verify"])
def test_every_action_of_the_shelf_has_an_example_that_parses(run, action):
    said = run("shelf", action, "--help")
    example = said.out.partition("example:\n  ")[2].strip()
    name, *words = shlex.split(example)
    assert (name, words[:2]) == ("dovetail", ["shelf", action])
    assert door._parser().parse_args(words).action == action


@pytest.mark.parametrize("use", ["domain", "replace", "devices", "extend", "transfer"])
def test_every_use_has_an_example_that_parses(run, use):
    said = run("reuse", use, "--help")
    example = said.out.partition("example:\n  ")[2].strip()
    name, *words = shlex.split(example)
    assert (name, words[:2]) == ("dovetail", ["reuse", use])
    assert door._parser().parse_args(words).use == use


def test_examples_of_ways_to_train_parse():
    from dovetail.cli import train

    for way in WAYS.values():
        args = door._parser().parse_args(shlex.split(way.example)[1:])
        assert (args.run, args.how) == (train.run, way.name)


@pytest.mark.parametrize("how", WAYS)
def test_help_shows_the_options_of_the_way_that_is_named(run, how):
    said = run("train", "--how", how, "--help").out
    own = {one.flag for one in WAYS[how].settings.declared.values()}
    others = {one.flag for way in WAYS.values() for one in way.settings.declared.values()} - own
    assert all(f"{flag}" in said for flag in own)
    assert not [flag for flag in others if f"  {flag} " in said]


def test_the_version(run):
    from dovetail import __version__

    assert run("--version").out.strip() == f"dovetail {__version__}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("norm=batch", ("norm", "batch")),
        ("hidden=[8,4]", ("hidden", [8, 4])),
        ("classes=3", ("classes", 3)),
        ("scale=1.5", ("scale", 1.5)),
        ("bias=false", ("bias", False)),
        ("path=a=b", ("path", "a=b")),
        ("empty=", ("empty", "")),
    ],
)
def test_arguments_of_builders(text, value):
    assert key_value(text) == value


def test_an_interrupt_ends_with_130(run, monkeypatch, furnished):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("dovetail.cli.cut.run", interrupted)
    said = run("cut", "net")
    assert said.code == 130
    assert said.err == "dovetail: interrupted; nothing is half-written\n"


def test_a_bug_of_ours_is_not_dressed_up_as_the_users(run, monkeypatch):
    def buggy(args):
        raise ZeroDivisionError

    monkeypatch.setattr("dovetail.cli.cut.run", buggy)
    with pytest.raises(ZeroDivisionError):
        run("cut", "net")


def test_a_full_disk_is_told(run, monkeypatch):
    def full(args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dovetail.cli.cut.run", full)
    said = run("cut", "net")
    assert said.code == 2
    assert "No space left on device" in said.err


def test_a_reader_that_leaves_early_is_no_error(furnished):
    done = subprocess.run(
        f"{shlex.join(COMMAND)} shelf show net --json | head -c 1",
        shell=True,
        cwd=furnished,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.stdout == "{"
    assert done.stderr == ""


def test_ctrl_c_while_training_leaves_a_run_that_goes_on(tmp_path):
    words = [
        "train",
        "digits",
        "--net",
        "mlp",
        "--epochs",
        "100000",
        "--checkpoint-seconds",
        "0.05",
    ]
    process = subprocess.Popen(
        [*COMMAND, *words],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        began = time.monotonic()
        while not list(tmp_path.glob(".dovetail-runs/*.safetensors")):
            assert process.poll() is None
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out) == (130, "")
    assert err.startswith("dovetail: interrupted; epoch ")
    assert err.endswith("the same call goes on from there\n")
    assert list((tmp_path / "shelf").iterdir()) == []
    (kept,) = (tmp_path / ".dovetail-runs").iterdir()
    assert kept.suffix == ".safetensors"
