"""The tangent Gram matrix against the Jacobian, one backward pass at a time."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from references.gram import gram, jacobian
from torch import nn

import dovetail as dt
from dovetail.core.errors import ContractError, DovetailError, SettingsError, TaskError
from dovetail.linalg import sample_gradients
from dovetail.linalg.gradient_factors import Dense, Outer
from dovetail.linalg.sample_gradients import Differentiated
from dovetail.linalg.tangent import tangent_gram


class Sequence(nn.Module):
    """Tokens, places, one layer of a transformer, the mean over places, a head."""

    def __init__(self, batch_first=True, padding=None):
        super().__init__()
        self.batch_first = batch_first
        self.table = nn.Embedding(11, 8, padding_idx=padding)
        self.places = nn.Parameter(torch.randn(1, 5, 8))
        self.start = nn.Parameter(torch.randn(1, 1, 8))
        self.gain = nn.Parameter(torch.randn(8))
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=batch_first, activation="gelu"
        )
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        h = (self.table(tokens) + self.places) * self.gain
        h = torch.cat([self.start.expand(len(h), -1, -1), h], 1)
        h = self.layer(h) if self.batch_first else self.layer(h.transpose(0, 1)).transpose(0, 1)
        return self.head(h[:, 0] + h.mean(1))


class Shared(nn.Module):
    """A layer used three times, a matrix used plainly, turned, and to read a table."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.tied = nn.Parameter(torch.randn(6, 6) / 2)

    def forward(self, x):
        h = torch.tanh(self.inner(torch.tanh(self.inner(x))))
        h = torch.tanh(h @ self.tied) + F.linear(h, self.tied)
        h = h + F.embedding(torch.arange(len(x)) * 0 + 2, self.tied)
        h = self.conv(torch.tanh(self.conv(h.reshape(-1, 1, 2, 3)))).flatten(1)
        return self.inner(h)[:, :2] + (self.inner.weight.square().sum() * h).sum(1, keepdim=True)


class Odd(nn.Module):
    """Operations without a rule: a gain made of a parameter, a batch of matrices, three axes."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.bent = nn.Parameter(torch.randn(4))
        self.unused = nn.Parameter(torch.randn(3))
        self.weighted = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.volume = nn.Conv3d(1, 1, 2)
        self.up = nn.ConvTranspose2d(1, 2, 2)
        self.recurrent = nn.GRU(4, 3, batch_first=True)
        self.both = nn.Bilinear(4, 4, 2)

    def forward(self, x):
        h = self.weighted(torch.sin(self.bent) * x) * self.scale.exp()
        v = self.volume(h.reshape(-1, 1, 2, 2, 1).expand(-1, -1, -1, -1, 2)).flatten(1)
        up = self.up(h.reshape(-1, 1, 2, 2)).flatten(1).mean(1, keepdim=True)
        last = self.recurrent(torch.stack([h, x], 1))[0][:, -1, :2]
        return self.both(h, x) + v + up + last


class Routed(nn.Module):
    """Rows are sorted by their first number before a layer, and put back."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        order = x[:, 0].argsort()
        h = torch.tanh(self.layer(x[order]))
        return self.head(h[order.argsort()])


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2),
        nn.GroupNorm(2, 4),
        nn.Tanh(),
        nn.Conv2d(4, 8, 3, padding=(1, 0), groups=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, (3, 1), padding="same", groups=8, padding_mode="circular"),
        nn.InstanceNorm2d(8, affine=True),
        nn.Flatten(2),
        nn.Conv1d(8, 3, 2, stride=2),
        nn.LayerNorm([3, 6]),
        nn.Flatten(),
        nn.Linear(18, 2),
    )


def settled(model):
    """Float64, with batch norms that have seen something."""
    model = model.double()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            module.weight.data.normal_()
    return model


def tokens(n, places=5):
    return torch.randint(0, 11, (n, places))


CASES = {
    "mlp": (lambda: dt.build("mlp", shape=(4,), classes=3, hidden=(7, 5)), (4,)),
    "mlp of sequences": (
        lambda: nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 9), nn.Flatten()),
        (2, 4),
    ),
    "lenet": (lambda: dt.build("lenet5", size=12, classes=2), (1, 12, 12)),
    "resnet": (lambda: dt.build("resnet8", size=8, classes=3, width=4), (3, 8, 8)),
    "depthwise": (lambda: dt.build("mobilenetv2", size=8, classes=2, width=0.1), (3, 8, 8)),
    "convolutions": (convolutions, (2, 9, 11)),
    "shared": (Shared, (6,)),
    "odd": (Odd, (4,)),
    "routed": (Routed, (4,)),
}


def made(name, n, seed=0):
    torch.manual_seed(seed)
    build, shape = CASES[name]
    model = build()
    model = settled(getattr(model, "module", model))
    return model, torch.randn(n, *shape, dtype=torch.float64)


def close(found, expected, relative=1e-10):
    assert found.dtype == torch.float64
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= relative * float(expected.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_is_the_product_of_jacobians(name):
    model, x = made(name, 5)
    expected = gram(model, x)
    close(tangent_gram(model, x), expected)
    diagonal = torch.einsum("icjc->ijc", expected)
    close(tangent_gram(model, x, outputs="diagonal"), diagonal)
    y = torch.randn_like(x[:4])
    close(tangent_gram(model, x, y, block=3), gram(model, x, y))


@pytest.mark.parametrize("name", CASES)
def test_of_two_networks(name):
    (model, x), (other, _) = made(name, 4), made(name, 1, seed=1)
    close(tangent_gram(model, x, model2=other), gram(model, x, model2=other))
    y = x[:3] + 1
    crossed = torch.einsum("icjc->ijc", gram(model, x, y, other))
    close(tangent_gram(model, x, y, other, outputs="diagonal"), crossed)


@pytest.mark.parametrize("n", [1, 3, 5, 6])  # as many as places, and as the samples of the plan
@pytest.mark.parametrize("batch_first", [True, False])
def test_of_a_transformer(batch_first, n):
    model, x = settled(Sequence(batch_first, padding=2)), tokens(n)
    close(tangent_gram(model, x), gram(model, x))


def test_a_transformer_needs_no_slow_way(monkeypatch):
    monkeypatch.delattr(Differentiated, "_one_by_one")
    model, x = settled(Sequence()), tokens(4)
    close(tangent_gram(model, x), gram(model, x))
    for name in ("lenet", "resnet", "depthwise"):
        model, x = made(name, 3)
        close(tangent_gram(model, x), gram(model, x))
        close(tangent_gram(model.float(), x.float()), gram(model, x.float()), 1e-5)


def test_what_vmap_cannot_do_is_done_in_a_loop(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("no batching rule")

    monkeypatch.setattr(sample_gradients, "sample_jacobians", refuse)
    model, x = made("odd", 4)
    close(tangent_gram(model, x), gram(model, x))


def test_rows_without_evidence_are_checked_later():
    class Late(nn.Module):
        """The three samples of the plan are dead; sequences come before their batch."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 4)

        def forward(self, x):
            h = torch.relu(self.layer(x.transpose(0, 1).contiguous())).transpose(0, 1)
            return (h * torch.arange(1, 6).reshape(5, 1)).sum((1, 2))[:, None]

    model = Late().double()
    nn.init.constant_(model.layer.bias, -1)
    nn.init.constant_(model.layer.weight, 1)
    x = torch.cat([torch.full((3, 5, 2), -1), torch.rand(4, 5, 2) * 2]).double()
    close(tangent_gram(model, x), gram(model, x))


@given(
    st.integers(1, 7),
    st.integers(1, 8),
    st.integers(0, 3000),
    st.sampled_from(["mlp", "mlp of sequences", "convolutions", "shared"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=20)
def test_blocks_and_memory_change_nothing(n, block, memory, name, diagonal):
    model, x = made(name, n)
    outputs = "diagonal" if diagonal else "full"
    whole = tangent_gram(model, x, outputs=outputs)
    close(tangent_gram(model, x, outputs=outputs, block=block, memory=memory), whole, 1e-12)
    turned = whole.transpose(0, 1) if diagonal else whole.permute(2, 3, 0, 1)
    assert torch.equal(whole, turned)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 4), st.booleans())
@settings(deadline=None, max_examples=20)
def test_both_ways_of_contracting_agree(n, k, o, first):
    from dovetail.linalg.gradient_factors import _add_by_columns, _add_by_positions, mirror_

    torch.manual_seed(0)
    g = torch.randn(n, o, 2, k, 3).double()
    left = Outer(torch.randn(n, 2, k, 5).double(), g, 5, first)
    dense = Dense(left.dense())
    for diagonal in (False, True):
        expected = torch.einsum("icp,jdp->icjd", dense.rows, dense.rows)
        expected = torch.einsum("icjc->ijc", expected) if diagonal else expected
        for right in (left, replace(left)):  # a block with itself is filled by halves
            by_columns, by_positions = torch.zeros_like(expected), torch.zeros_like(expected)
            _add_by_columns(by_columns, left, right, diagonal)
            _add_by_positions(by_positions, left, right, diagonal, False)
            for found in (by_columns, by_positions):
                if right is left:
                    mirror_(found)
                close(found, expected)


@pytest.mark.parametrize("outputs", ["full", "diagonal"])
@pytest.mark.parametrize("name", ["mlp", "mlp of sequences", "convolutions", "shared"])
def test_small_rooms_and_panels_make_the_same(name, outputs, monkeypatch):
    from dovetail.linalg import gradient_factors, gradient_rules

    model, x = made(name, 7)
    expected = gram(model, x)
    if outputs == "diagonal":
        expected = torch.einsum("icjc->ijc", expected)
    monkeypatch.setattr(gradient_factors, "ROOM", 64)
    monkeypatch.setattr(gradient_factors, "PANEL", 3)
    monkeypatch.setattr(gradient_rules, "CACHE", 1)
    close(tangent_gram(model, x, outputs=outputs), expected)
    close(tangent_gram(model, x, outputs=outputs, block=5), expected)
    close(tangent_gram(model, x, x.clone(), outputs=outputs), expected)


@pytest.mark.parametrize("params", ["head.*", ["hidden1.*", "*bias"], "hidden2.linear.weight"])
def test_some_parameters(params):
    from fnmatch import fnmatch

    model, x = made("mlp", 5)
    patterns = [params] if isinstance(params, str) else params
    every = [name for name, _ in model.named_parameters()]
    names = [name for name in every if any(fnmatch(name, p) for p in patterns)]
    close(tangent_gram(model, x, params=params), gram(model, x, names=names))


def test_float32_features_are_multiplied_in_float64():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 50), nn.ELU(), nn.Linear(50, 1))
    x = torch.randn(60, 5)
    exact = tangent_gram(copy.deepcopy(model).double(), x.double())
    found = tangent_gram(model, x)
    close(found, exact, 1e-6)
    assert torch.linalg.eigvalsh(found.squeeze()).min() > -1e-9 * found.abs().max()


def test_leaves_everything_as_it_was():
    model, x = made("resnet", 3)
    expected = gram(model, x)
    model.train()
    model.layer1.eval()
    model.head.weight.requires_grad_(False)
    state = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    chance = torch.get_rng_state()
    with torch.no_grad():
        close(tangent_gram(model, x), expected)
    with torch.inference_mode():
        close(tangent_gram(model, x.clone()), expected)
    with torch.autocast("cpu"):
        close(tangent_gram(model, x), expected)
    with pytest.raises(TaskError):
        tangent_gram(model, x[:, :2])
    assert modes == [m.training for m in model.modules()]
    assert flags == [p.requires_grad for p in model.parameters()]
    assert all(p.grad is None for p in model.parameters())
    assert torch.equal(chance, torch.get_rng_state())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert not tangent_gram(model, x).requires_grad


def test_one_tensor_under_two_names_counts_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    model[2].weight = model[0].weight
    x = torch.randn(5, 4).double()
    close(tangent_gram(model, x), gram(model, x))
    close(tangent_gram(model, x, params="2.weight"), gram(model, x, names=["0.weight"]))


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 20)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5, training=True)


class Centred(Dropping):
    def forward(self, x):
        return self.layer(x) - self.layer(x).mean(0)


class Detached(Dropping):
    def forward(self, x):
        return self.layer(x).detach()


class Rooted(Dropping):
    def forward(self, x):
        return (self.layer(x) * 0).abs().sqrt()


class Scripted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("no way back")


class NoWayBack(Dropping):
    def forward(self, x):
        return Scripted.apply(self.layer(x))


LINEAR = nn.Linear(3, 2)
X = torch.ones(4, 3)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: tangent_gram(LINEAR, X * torch.nan), TaskError, "not finite"),
        (lambda: tangent_gram(LINEAR, X[:0]), TaskError, "at least one sample"),
        (lambda: tangent_gram(LINEAR, [1.0]), TaskError, "inputs are a tensor"),
        (lambda: tangent_gram(LINEAR, X, X[0, 0]), TaskError, "inputs are a tensor"),
        (lambda: tangent_gram(LINEAR, X[:, :2]), TaskError, "does not take inputs"),
        (lambda: tangent_gram(LINEAR, X.double()), TaskError, "float64"),
        (lambda: tangent_gram(LINEAR, X, params="wieght"), SettingsError, "did you mean weight"),
        (lambda: tangent_gram(LINEAR, X, params=[]), SettingsError, "no parameter was chosen"),
        (lambda: tangent_gram(LINEAR, X, outputs="some"), SettingsError, "diagonal"),
        (lambda: tangent_gram(LINEAR, X, block=0), SettingsError, "at least 1"),
        (lambda: tangent_gram(LINEAR, X, block=True), SettingsError, "at least 1"),
        (lambda: tangent_gram(F.relu, X), ContractError, "nn.Module"),
        (lambda: tangent_gram(nn.LazyLinear(2), X), SettingsError, "no shape yet"),
        (lambda: tangent_gram(LINEAR, X, model2=nn.Linear(3, 4)), ContractError, "share"),
        (lambda: tangent_gram(LINEAR, X, model2=nn.Sequential(LINEAR)), ContractError, "only one"),
        (lambda: tangent_gram(LINEAR, X[:, None]), ContractError, r"not \[n, o\]"),
        (lambda: tangent_gram(nn.Sequential(LINEAR, nn.Flatten(0)), X), ContractError, "flattens"),
        (lambda: tangent_gram(nn.LSTM(3, 2), X), ContractError, "tuple"),
        (lambda: tangent_gram(Dropping(), X), ContractError, "dropout"),
        (lambda: tangent_gram(Centred(), X[:1]), ContractError, "other samples"),
        (lambda: tangent_gram(Detached(), X), ContractError, "reaches the outputs"),
        (lambda: tangent_gram(Rooted(), X), DovetailError, "not finite"),
        (lambda: tangent_gram(NoWayBack(), X), ContractError, "no way back"),
        (
            lambda: tangent_gram(nn.BatchNorm1d(3, track_running_stats=False), X),
            ContractError,
            "statistics of the batch",
        ),
    ],
)
def test_what_is_wrong_is_said(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_the_reference_is_torchs_jacobian():
    from torch.func import functional_call, jacrev

    model, x = made("mlp", 3)
    values = dict(model.named_parameters())
    parts = jacrev(lambda p: functional_call(model, p, (x,)))(values)
    whole = torch.cat([part.flatten(2) for part in parts.values()], 2)
    torch.testing.assert_close(jacobian(model, x), whole)
