"""Processes that nobody made a group of, and messages that shrink to almost nothing."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.closed_form import PlatonicClassifier
from dovetail.core.errors import SettingsError
from dovetail.dist.averaging import Averaging
from dovetail.dist.packed_mean import averaged
from dovetail.pack import decompressing


def test_one_of_several_processes_does_not_work_alone(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    batches = [(torch.randn(20, 3), torch.arange(20) % 2)]
    with pytest.raises(SettingsError, match=r"started 2 processes.*init_process_group"):
        Averaging(nn.Linear(3, 2))
    with pytest.raises(SettingsError, match=r"started 2 processes.*init_process_group"):
        PlatonicClassifier((4,)).fit_batches(batches, distributed=True)
    PlatonicClassifier((4,)).fit_batches(batches)  # which asks for no group
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert repr(Averaging(nn.Linear(3, 2)).record()) == "Exchanges(none yet, 1 process)"


def test_a_message_may_shrink_beyond_what_strangers_may_send(monkeypatch):
    monkeypatch.setattr(decompressing, "_ALWAYS_ALLOWED", 1000)
    monkeypatch.setattr(decompressing, "_TIMES", 2)
    state = {"w": torch.zeros(300, 300)}
    assert torch.equal(averaged([state, state], packing={}).state["w"], state["w"])
