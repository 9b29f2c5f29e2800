"""How many bytes of tensors are alive in a real run, by the results of every operation.

An accountant of its own, which knows nothing of the package's: tensors of data that the caller had
before do not count, nor do tensors without values, nor files that are mapped into memory.
"""

from __future__ import annotations

import traceback
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Alive(TorchDispatchMode):
    """Counts while it is entered; ``peak`` is the most, ``where`` who held it."""

    def __init__(self, model, task):
        super().__init__()
        splits = [task.indices(name) for name in ("train", "validation", "test")]
        state = model.module.state_dict().values()
        known = [task.inputs, task.targets, *splits, *state]
        self._known = {t.untyped_storage()._cdata for t in known}
        self._held = known  # or another tensor might come to have the address of one of them
        self._sizes = {}
        self.now = self.peak = 0
        self.where = ()

    def _gone(self, key):
        self.now -= self._sizes.pop(key)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or isinstance(tensor, FakeTensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if tensor.device.type == "meta" or key in self._known or key in self._sizes:
                continue
            if not storage.resizable():  # not of torch's making: a file that is mapped
                self._known.add(key)
                self._held.append(tensor)
                continue
            self._sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            weakref.finalize(storage, self._gone, key)
        if self.now > self.peak:
            self.peak = self.now
            self.where = [
                f"{f.name}:{f.lineno}"
                for f in traceback.extract_stack()[:-1]
                if "dovetail" in f.filename
            ][-6:]
        return result
