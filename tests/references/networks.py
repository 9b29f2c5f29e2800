"""Networks as people write them, by hand, for cutting.

Each is a few lines of ordinary PyTorch.  None knows about dovetail.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """A residual block in torchvision's way: one ReLU, in place, used twice."""

    def __init__(self, inputs, outputs, stride=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class VisionResNet(nn.Module):
    """A small ResNet in torchvision's way."""

    def __init__(self, classes=5):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        down = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
        self.layer2 = nn.Sequential(BasicBlock(8, 12, 2, down), BasicBlock(12, 12))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(12, classes)

    def _forward_impl(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        x = torch.flatten(self.avgpool(x), 1)
        return self.fc(x)

    def forward(self, x):
        return self._forward_impl(x)


class TutorialCNN(nn.Module):
    """Functional activations and pools, and a view with the batch size read off."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1)
        self.fc1 = nn.Linear(8 * 2 * 2, 12)
        self.fc2 = nn.Linear(12, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(x.size(0), -1)
        return self.fc2(F.relu(self.fc1(x)))


class Looped(nn.Module):
    """A loop over a ModuleList, checked by a shape assertion, with a buffer nobody stores."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x):
        torch._assert(x.dim() == 2, "vectors only")
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale
        return x


class Optional(nn.Module):
    """An argument that nobody need give."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.act = nn.ReLU()
        self.second = nn.Linear(8, 4)

    def forward(self, x, mask=None, *, double=False):
        x = self.act(self.first(x))
        if mask is not None:
            x = x * mask
        if double:
            x = x * 2
        return self.second(x)


class Nested(nn.Module):
    """A Sequential inside a Module, to be put inside a Sequential; one ReLU stands there twice."""

    def __init__(self):
        super().__init__()
        act = nn.ReLU()
        self.body = nn.Sequential(nn.Linear(12, 10), act, nn.Linear(10, 9), act, nn.Linear(9, 8))
        self.gate = nn.Linear(8, 8)

    def forward(self, x):
        x = self.body(x)
        return x * torch.sigmoid(self.gate(x))


class Tokens(nn.Module):
    """A transformer-like net with parameters of its own: a class token and positions."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, 8))
        self.positions = nn.Parameter(torch.randn(1, 5, 8))
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
        x = x + self.positions
        x = x + self.mix(self.norm(x))
        return self.head(x[:, 0])


class Dense(nn.Module):
    """DenseNet-like: every layer sees all that came before, so several tensors cross."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(8, 4, 3, padding=1)
        self.c = nn.Conv2d(12, 4, 3, padding=1)
        self.drop = nn.Dropout(0.3)
        self.out = nn.Conv2d(16, 5, 1)

    def forward(self, x):
        x = F.relu(self.stem(x))
        a = self.drop(F.relu(self.a(x)))
        b = F.relu(self.b(torch.cat([x, a], 1)))
        c = F.relu(self.c(torch.cat([x, a, b], 1)))
        return self.out(torch.cat([x, a, b, c], 1)).mean((2, 3))


class InPlaceBranch(nn.Module):
    """The second branch sees what the first did in place; the order is part of the meaning."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 8)
        self.relu = nn.ReLU(inplace=True)
        self.left = nn.Linear(8, 4)
        self.right = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        gate = torch.sigmoid(self.left(x.relu_()))
        return gate * self.right(x)


class FunctionalDropout(nn.Module):
    """Its forward differs between training and evaluation."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)

    def forward(self, x):
        return self.second(F.dropout(F.relu(self.first(x)), 0.5, self.training))


class Branching(nn.Module):
    """Which way it goes depends on the data."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)

    def forward(self, x):
        x = self.first(x)
        return self.second(x) if x.sum() > 0 else x


class Noisy(nn.Module):
    """Draws random numbers of a fixed shape: a trace would freeze one draw for ever."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 12)

    def forward(self, x):
        return self.second(self.first(x) + torch.randn(12))


class Recording(nn.Module):
    """Keeps its features as an attribute, as people do to look at them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        self.features = torch.relu(self.first(x))
        return self.second(self.features)


class CalledTwice(nn.Module):
    """One layer with weights, in two places."""

    def __init__(self):
        super().__init__()
        self.before = nn.Linear(12, 12)
        self.shared = nn.Linear(12, 12)
        self.act = nn.ReLU()
        self.after = nn.Linear(12, 4)

    def forward(self, x):
        x = self.act(self.shared(self.before(x)))
        return self.after(self.act(self.shared(x)))


class TiedAcross(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed in use and tied in weight."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 12)
        self.middle = nn.Linear(12, 12)
        self.decoder = nn.Linear(12, 12)
        self.decoder.weight = self.encoder.weight
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        x = self.decoder(torch.relu(self.middle(torch.relu(self.encoder(x)))))
        return self.head(torch.relu(x))


class Idle(nn.Module):
    """Holds a parameter that takes no part in its forward."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.second = nn.Linear(12, 4)
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.second(self.first(x))


class SameNames(nn.Module):
    """A child and an operation with one name between them."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.relu = nn.Sigmoid()
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        return self.second(self.relu(torch.relu(self.first(x))))


class Pieces(nn.Module):
    """Takes tensors apart: what ``chunk`` and an LSTM give is not one tensor."""

    def __init__(self):
        super().__init__()
        self.widen = nn.Linear(12, 16)
        self.lstm = nn.LSTM(8, 6, batch_first=True)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        value, gate = self.widen(x).chunk(2, dim=-1)
        steps = (value * torch.sigmoid(gate)).unsqueeze(1)
        sequence, _ = self.lstm(steps)
        return self.head(sequence.squeeze(1))
