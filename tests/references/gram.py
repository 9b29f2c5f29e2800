"""The tangent Gram matrix as its definition says it: one backward pass for each number of J."""

from __future__ import annotations

import torch


def jacobian(model, x, names=None):
    """``[n, o, p]`` of a network in evaluation mode, each sample in a batch of its own."""
    model.eval()
    wanted = [p for name, p in model.named_parameters() if names is None or name in names]
    rows = []
    for sample in x:
        outputs = model(sample[None])[0]
        for one in outputs:
            found = torch.autograd.grad(one, wanted, retain_graph=True, allow_unused=True)
            pairs = zip(wanted, found, strict=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in pairs]
            rows.append(torch.cat([g.flatten() for g in flat]))
    return torch.stack(rows).reshape(len(x), -1, sum(p.numel() for p in wanted))


def gram(model, x, x2=None, model2=None, names=None):
    """``[n, o, m, o]``: every pair of rows of two Jacobians."""
    left = jacobian(model, x, names).double()
    right = jacobian(model2 or model, x if x2 is None else x2, names).double()
    return torch.einsum("icp,jdp->icjd", left, right)
