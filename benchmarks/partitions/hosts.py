"""Two hosts on one machine: network namespaces, joined by a link whose rate can be limited."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A namespace, its device, and its address."""

    space: str
    device: str
    address: str

    def command(self, *words: str) -> list[str]:
        """The command, as it is run there."""
        return ["ip", "netns", "exec", self.space, *words]


def _do(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextmanager
def two_hosts(name: str) -> Iterator[tuple[Host, Host] | None]:
    """Two hosts with a link between them; nothing where that is not allowed.

    It takes root, and ``ip`` and ``tc`` of iproute2.
    """
    hosts = tuple(
        Host(f"dovetail-{name}-{i}", f"dt{name}{i}", f"10.77.{len(name)}.{i + 1}") for i in range(2)
    )
    if not (shutil.which("ip") and shutil.which("tc")):
        yield None
        return
    allowed = True
    try:
        for host in hosts:
            _do("ip", "netns", "add", host.space)
        first, second = (host.device for host in hosts)
        _do("ip", "link", "add", first, "type", "veth", "peer", "name", second)
        for host in hosts:
            _do("ip", "link", "set", host.device, "netns", host.space)
            _do("ip", "-n", host.space, "addr", "add", f"{host.address}/24", "dev", host.device)
            for device in (host.device, "lo"):
                _do("ip", "-n", host.space, "link", "set", device, "up")
    except subprocess.CalledProcessError as error:
        print(f"network namespaces are not allowed here: {error.stderr.strip()}")
        allowed = False
    try:
        yield (hosts[0], hosts[1]) if allowed else None
    finally:
        for host in hosts:
            subprocess.run(["ip", "netns", "del", host.space], capture_output=True, check=False)


def limit(hosts: tuple[Host, Host], rate: str) -> None:
    """Both ends send at most so fast, as ``tc`` says it: 100mbit."""
    for host in hosts:
        qdisc = ("tc", "qdisc", "replace", "dev", host.device, "root", "tbf", "rate", rate)
        _do(*host.command(*qdisc, "burst", "64kb", "latency", "200ms"))
