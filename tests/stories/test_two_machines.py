"""The how-to for two machines, done in two network namespaces of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail as dt

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRAIN = (
    *("train", "digits", "--how", "partitioned", "--net", "lenet5", "--set", "norm=batch"),
    *("--at", "conv1", "--epochs", "3"),
)


@pytest.mark.slow
def test_two_machines_give_the_network_of_one(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from partitions.hosts import limit, two_hosts

    with two_hosts("how") as hosts:
        if hosts is None:
            pytest.skip("network namespaces are not allowed here; it takes root and iproute2")
        limit(hosts, "100mbit")
        started = []
        for number, host in enumerate(hosts):
            run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
            run += ["--node-rank", str(number), "--nproc-per-node", "1"]
            run += ["--master-addr", hosts[0].address, "--master-port", "29500"]
            shelf = ["--shelf", str(tmp_path / f"machine{number}"), "--name", "two"]
            started.append(
                subprocess.Popen(
                    host.command(*run, "-m", "dovetail", *TRAIN, "--parallel", *shelf),
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": "1",
                        "GLOO_SOCKET_IFNAME": host.device,
                    },
                )
            )
        for process in started:
            assert process.wait(300) == 0
    alone = [sys.executable, "-m", "dovetail", *TRAIN, "--name", "one"]
    subprocess.run(
        [*alone, "--shelf", str(tmp_path / "alone")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )
    one = dt.Shelf(tmp_path / "alone").get("one")
    two = dt.Shelf(tmp_path / "machine0").get("two")
    assert one.digest == two.digest
    assert not [entry.name for entry in dt.Shelf(tmp_path / "machine1")]
