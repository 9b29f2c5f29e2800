import pytest
from tasks.loopback import serving

from dovetail.core.errors import TaskError
from dovetail.tasks.download import download

CONTENT = bytes(range(256)) * 10_000  # more than two steps of the bar


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with serving() as server:
        yield server


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
