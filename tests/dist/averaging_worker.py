"""What a worker of the averaging tests does: small, and the same in a process and in a simulation.

Run by ``torchrun``, it writes down what each process ended with.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dovetail as dt
from dovetail.cli.main import main as dovetail
from dovetail.core.errors import ContractError, TaskError, TrainingError
from dovetail.dist.averaging import Averaging
from dovetail.train.end_to_end import end_to_end

EVERY, STEPS = 3, 8
WAYS = {
    "plain": (None, True),
    "packed": ({"extra_bits": 2}, True),
    "coarse": ({"levels": 5}, False),
    "gradients": ({"gradients": True, "extra_bits": 4}, True),
}
TRAINING = {
    **{"epochs": 3, "batch_size": 50, "lr": 0.05, "schedule": "constant"},
    **{"average_every": 4, "seed": 5},
}


def network():
    """With batch statistics, an integer buffer, a frozen layer and a tied weight."""
    torch.manual_seed(3)
    net = nn.Sequential(
        nn.Linear(12, 30),
        nn.BatchNorm1d(30),
        nn.Tanh(),
        nn.Linear(30, 30),
        nn.Linear(30, 30),
        nn.Linear(30, 30),
    )
    net[3].requires_grad_(False)
    net[5].weight = net[4].weight
    return net


def worker(net, rank):
    """An optimiser with momentum, and a function that takes its next step."""
    optimiser = torch.optim.SGD(
        [p for p in net.parameters() if p.requires_grad], lr=0.05, momentum=0.9
    )
    draw = torch.Generator().manual_seed(rank)

    def step():
        x = torch.randn(16, 12, generator=draw)
        optimiser.zero_grad()
        (net(x) - x.repeat(1, 3)[:, :30]).square().mean().backward()
        optimiser.step()

    return step


def part():
    """A small network for digits."""
    return dt.build("mlp", hidden=(24,))


class PowerCut(Exception):
    """What stands for a power cut."""


def power_cut(moment):
    if moment.epoch == 2:
        raise PowerCut


def loop_of_ones_own(rank, folder):
    for name, (packing, feedback) in WAYS.items():
        net = network()
        with torch.no_grad():
            net[0].weight += rank  # all begin with what process 0 has
        averaging = Averaging(net, every=EVERY, packing=packing, error_feedback=feedback)
        step = worker(net, rank)
        for number in range(STEPS):
            step()
            assert averaging.step() == ((number + 1) % EVERY == 0)
            if number == 4:  # as a training that is interrupted and resumed
                kept, now = averaging.state_dict(), copy.deepcopy(net.state_dict())
                averaging = Averaging(net, EVERY, packing, feedback)
                averaging.load_state_dict(kept)
                net.load_state_dict(now)
        assert averaging.synchronise()
        assert not averaging.synchronise()
        torch.save(net.state_dict(), folder / f"{name}{rank}.pt")
        averaging.record().save(folder / f"{name}{rank}.json")


def mistakes(rank):
    for make in (
        lambda: Averaging(nn.Linear(3, 2 + rank)),
        lambda: Averaging(nn.Linear(3, 2), every=5 + rank),
        lambda: Averaging(nn.Linear(3, 2), packing={"bits": 4 + rank}),
    ):
        with pytest.raises(ContractError, match="process 1"):
            make()
    net = nn.Linear(30, 30)
    averaging = Averaging(net, every=1)
    if rank == 1:
        nn.init.constant_(net.weight, torch.nan)
    with pytest.raises(TaskError if rank == 1 else TrainingError, match=r"pack|finite"):
        averaging.step()


def uneven(rank, folder):
    """One process has fewer batches; the other is at an exchange when it comes to the end."""
    averaging = Averaging(nn.Linear(3, 2), every=3)
    for _ in range(5 - 2 * rank):
        averaging.step()
    with pytest.raises(TrainingError) as error:
        averaging.synchronise() if rank else averaging.step()
    (folder / f"uneven{rank}").write_text(str(error.value))


def one_ends():
    dist.init_process_group("gloo")
    averaging = Averaging(nn.Linear(3, 2), every=2)
    if dist.get_rank() == 1:
        return
    averaging.step()
    with pytest.raises(TrainingError) as error:
        averaging.step()
    print(f"told: {error.value}")


def training(rank, folder):
    task = dt.load_task("digits")
    fit = end_to_end(part(), task, **TRAINING)
    torch.save(fit.part.module.state_dict(), folder / f"trained{rank}.pt")
    fit.record.save(folder / f"trained{rank}.json")
    kept = {"checkpoint": folder / "run.safetensors", "checkpoint_seconds": 0}
    with pytest.raises(PowerCut):
        end_to_end(part(), task, **TRAINING, **kept, callbacks=(power_cut,))
    resumed = end_to_end(part(), task, **TRAINING, **kept)
    torch.save(resumed.part.module.state_dict(), folder / f"resumed{rank}.pt")
    stopped = end_to_end(part(), task, **TRAINING, callbacks=(lambda moment: rank == 1,))
    assert len(stopped.record.rows) == 1  # one says stop, all stop


def command_line(folder):
    """The command finds the processes by itself, makes a group of them and takes it down."""
    command = ["train", "digits", "--net", "mlp", "--epochs", "2", "--name", "m", "--json"]
    averaged = ["--average-every", "5", "--extra-bits", "3", "--keep-epochs", "1"]
    assert dovetail(command + averaged + ["--shelf", str(folder / "shelf")]) == 0
    assert not dist.is_initialized()


def main(folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    loop_of_ones_own(rank, folder)
    mistakes(rank)
    uneven(rank, folder)
    training(rank, folder)
    dist.destroy_process_group()
    command_line(folder)


if __name__ == "__main__":
    one_ends() if sys.argv[1] == "--one-ends" else main(Path(sys.argv[1]))
