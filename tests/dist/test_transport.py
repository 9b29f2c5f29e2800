"""Messages between processes: what is written is read, in its order, and nobody waits for ever."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import PATIENCE, start

from dovetail.core.errors import SettingsError, TrainingError
from dovetail.dist.council import Council
from dovetail.dist.transport import PIECE, Message, Sender, Transport, lengths, read, written
from dovetail.dist.wire import check_packing

TENSORS = {
    "z": torch.linspace(-3, 3, 4000).reshape(20, 200),
    "half": torch.arange(6.0).half().reshape(2, 3),
    "places": torch.arange(20, dtype=torch.int32),
    "mask": torch.tensor([True, False]),
    "none": torch.empty(0, 5),
    "turned": torch.arange(6.0).reshape(2, 3).T,
    "one": torch.tensor(2.5, dtype=torch.float64),
}


def there_and_back(packing=None):
    head, data = written(Message("batch", TENSORS, {"n": 1}), packing)
    head = json.loads(json.dumps(head))
    assert list(lengths(head)) == [len(each) for each in data]
    found = read(head, data)
    assert (found.kind, found.facts) == ("batch", {"n": 1})
    return found.tensors


def test_what_is_written_is_read():
    for name, tensor in there_and_back().items():
        assert tensor.dtype == TENSORS[name].dtype
        assert torch.equal(tensor, TENSORS[name])


@pytest.mark.parametrize("packing", ["float16", {"bits": 8}])
def test_packing_rounds_floats_and_nothing_else(packing):
    found = there_and_back(packing)
    assert found["z"].dtype == torch.float32
    assert not torch.equal(found["z"], TENSORS["z"])
    torch.testing.assert_close(found["z"], TENSORS["z"], atol=0.03, rtol=1e-3)
    for name in ("half", "places", "mask", "none"):
        assert torch.equal(found[name], TENSORS[name])


def test_packed_is_smaller():
    plain, halves, packed = (
        sum(map(len, written(Message("batch", {"z": TENSORS["z"]}), how)[1]))
        for how in (None, "float16", {"bits": 6})
    )
    assert packed < halves == plain // 2


def test_a_packing_that_is_none_is_refused():
    with pytest.raises(SettingsError, match="did you mean bits"):
        check_packing({"bit": 3})


# Between processes --------------------------------------------------------------------------------


def _joined(rank, size, folder, timeout):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size
    )
    return Transport([f"process {i}" for i in range(size)], timeout)


def _told(folder, rank, what):
    Path(folder, f"{rank}.json").write_text(json.dumps(what))


def _in_order(rank, size, folder):
    transport = _joined(rank, size, folder, 30)
    draw = torch.Generator().manual_seed(rank)
    large = torch.zeros(PIECE // 4 + 5).normal_(generator=torch.Generator().manual_seed(9))
    found = []
    for queue in (1, 2, 3, 4):
        if rank == 0:
            sender = Sender(transport, 1, queue, queue)
            for number in range(12):
                time.sleep(float(torch.rand((), generator=draw)) * 0.01)
                sender.put(Message("batch", {"n": torch.tensor(number)}, "x" * 900 * (number % 3)))
            sender.put(Message("end", {"large": large}))
            sender.put(Message("validation"))
            sender.flush()
            continue
        receiver = transport.receiver(0, queue, ahead=queue)
        kinds = []
        for number in range(12):
            time.sleep(float(torch.rand((), generator=draw)) * 0.01)
            message = receiver.get()
            kinds.append(message.kind)
            assert int(message.tensors["n"]) == number
            assert len(message.facts) == 900 * (number % 3)
        end = receiver.get()
        assert torch.equal(end.tensors["large"], large)
        found.append([*kinds, end.kind, receiver.get().kind])
    council = Council(transport)
    assert council.told({"rank": rank}) == [{"rank": i} for i in range(size)]
    council._often = 0
    if rank == size - 1:  # the others wait for it, and hear that it lives
        for _ in range(5):
            time.sleep(0.05)
            council.beat()
    assert council.told(rank) == list(range(size))
    transport.close()
    _told(folder, rank, found)


def _one_goes(rank, size, folder, how):
    transport = _joined(rank, size, folder, 2)
    council = Council(transport)
    council.told(None)
    if rank == 1:
        if how == "error":
            transport.broken = True
            transport.close()
            time.sleep(5)
        os.kill(os.getpid(), signal.SIGKILL if how == "SIGKILL" else signal.SIGSTOP)
    began = time.monotonic()
    try:
        transport.receiver(1, 3, ahead=2).get()
    except TrainingError as error:
        _told(folder, rank, [str(error), time.monotonic() - began])
    transport.close()
    os._exit(0)


def _run(work, size, folder, *args):
    return [start(work, rank, size, str(folder), *args) for rank in range(size)]


def test_messages_arrive_in_their_order_whatever_the_queue(tmp_path):
    for process in _run(_in_order, 2, tmp_path):
        process.join(PATIENCE)
        assert process.exitcode == 0
    kinds = json.loads((tmp_path / "1.json").read_text())
    assert kinds == [["batch"] * 12 + ["end", "validation"]] * 4


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP", "error"])
def test_a_process_that_goes_is_told_of_by_name(tmp_path, how):
    first, second = _run(_one_goes, 2, tmp_path, how)
    first.join(60)
    second.kill()
    said, seconds = json.loads((tmp_path / "0.json").read_text())
    words = "gave no sign for 2 s" if how == "SIGSTOP" else "process 1 cannot be reached any more"
    assert words in said
    assert "goes on from the last checkpoint" in said
    assert seconds < 20
