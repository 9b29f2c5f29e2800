from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dovetail.core.errors import ContractError, TaskError
from dovetail.measure.predict import predict
from dovetail.parts.contract import Preprocess
from dovetail.parts.cutting import cut
from dovetail.parts.foreign.adopting import adopt
from dovetail.parts.part import build

NAMES = ("ant", "bee", "cat")


@pytest.fixture
def part():
    net = build("mlp", shape=(1, 6, 5), hidden=(8,), classes=3, seed=3)
    how = Preprocess(size=(6, 5), channels=1, mean=(0.4,), std=(0.2,))
    return net.changed(contract=replace(net.contract, classes=NAMES, preprocess=how))


@pytest.fixture
def images():
    return torch.rand(7, 1, 6, 5, generator=torch.Generator().manual_seed(2))


def test_the_largest_output_names_the_class(part, images):
    found = predict(part, images)
    for i, x in enumerate(images):
        z = part(((x - 0.4) / 0.2)[None])[0].double()
        shares = (z.exp() / z.exp().sum()).tolist()
        best = max(range(3), key=shares.__getitem__)
        assert found.labels[i] == NAMES[best]
        assert found.probabilities[i].tolist() == pytest.approx(shares, rel=1e-5)
        assert found.confidence[i] == pytest.approx(shares[best], rel=1e-5)
    assert (len(found), found.classes) == (7, NAMES)
    assert len(set(found.labels)) > 1  # else the names would prove nothing


def test_without_names_the_classes_are_numbers():
    found = predict(nn.Linear(2, 3), torch.rand(4, 2))
    assert found.classes == ("0", "1", "2")


@pytest.mark.parametrize("size", [1, 3, 512])
def test_the_size_of_the_batches_does_not_matter(part, images, size):
    whole = predict(part, images)
    torch.testing.assert_close(
        predict(part, images, batch_size=size).probabilities, whole.probabilities
    )


def test_axes_that_were_left_out_are_put_in(part, images):
    whole = predict(part, images).probabilities
    without_channel = predict(part, images[:, 0]).probabilities
    one_image = predict(part, images[2]).probabilities
    one_without_channel = predict(part, images[2, 0]).probabilities
    assert torch.equal(without_channel, whole)
    torch.testing.assert_close(one_image, whole[2:3])
    assert torch.equal(one_without_channel, one_image)


def test_a_single_vector():
    line = adopt(nn.Linear(4, 2), example=torch.zeros(1, 4))
    x = torch.rand(4)
    assert torch.equal(predict(line, x).probabilities, predict(line, x[None]).probabilities)


def test_colour_images_may_have_their_channels_last():
    net = build("mlp", shape=(3, 6, 6), hidden=(8,), classes=3)
    how = Preprocess(size=(6, 6), channels=3)
    part = net.changed(contract=replace(net.contract, preprocess=how))
    x = torch.rand(5, 3, 6, 6)
    whole = predict(part, x).probabilities
    assert torch.equal(predict(part, x.permute(0, 2, 3, 1)).probabilities, whole)
    torch.testing.assert_close(predict(part, x[0].permute(1, 2, 0)).probabilities, whole[:1])


def test_feature_maps_keep_their_axes():
    """Maps 4×3×3 look like channels that come last, but a head takes what it is given."""
    head = adopt(nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), example=torch.zeros(1, 4, 3, 3))
    x = torch.rand(5, 4, 3, 3)
    assert torch.equal(predict(head, x).probabilities, head(x).detach().double().softmax(1))


def test_bytes_are_shares_of_255(part):
    x = torch.randint(256, (4, 1, 6, 5), dtype=torch.uint8)
    assert torch.equal(predict(part, x).probabilities, predict(part, x / 255).probabilities)


def test_arrays_lists_and_doubles_are_taken(part, images):
    whole = predict(part, images).probabilities
    assert torch.equal(predict(part, images.numpy()).probabilities, whole)
    assert torch.equal(predict(part, images.double()).probabilities, whole)
    assert torch.equal(predict(part, images.tolist()).probabilities, whole)
    read_only = images.numpy().copy()
    read_only.flags.writeable = False
    assert torch.equal(predict(part, read_only).probabilities, whole)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_refused(part, images, bad):
    images[3, 0, 1, 1] = bad
    with pytest.raises(TaskError, match="NaN or infinite"):
        predict(part, images)


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        (np.zeros((0, 1, 6, 5), np.float32), TaskError, "no inputs"),
        (np.float32(3.0), TaskError, "no inputs"),
        (np.zeros((2, 1, 6, 5), np.int64), TaskError, "int64 have no known scale"),
        (np.zeros((2, 7), np.float32), ContractError, "takes 1×6×5"),
        (np.zeros((2, 2, 1, 6, 5), np.float32), ContractError, "takes 1×6×5"),
        (np.array(["cat", "dog"]), TaskError, "array of numbers"),
        ([[1.0], [1.0, 2.0]], TaskError, "array of numbers"),
    ],
)
def test_inputs_that_are_refused(part, inputs, error, words):
    with pytest.raises(error, match=words):
        predict(part, inputs)


def test_only_what_gives_a_number_a_class_predicts(part, images):
    front, _ = cut(build("lenet5", size=8, classes=3), at="conv1")
    with pytest.raises(ContractError, match="gives 6×4×4, not one number a class"):
        predict(front, torch.rand(2, 1, 8, 8))
    with pytest.raises(ContractError, match="gives 1, not one number a class"):
        predict(nn.Linear(3, 1), torch.rand(2, 3))
    lying = part.changed(contract=replace(part.contract, classes=("ant", "bee")))
    with pytest.raises(ContractError, match="has 2 classes but gives 3"):
        predict(lying, images)


def test_what_is_printed_is_short(part, images):
    assert repr(predict(part, images)).endswith(", ...)")
    assert repr(predict(part, images[:2])).count(",") == 1


def test_a_part_for_numbers_gives_numbers_also_for_a_table(tmp_path):
    part = adopt(nn.Linear(2, 1), example=torch.rand(1, 2))
    part = part.changed(contract=replace(part.contract, kind="regression"))
    rows = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])
    said = predict(part, rows)
    torch.testing.assert_close(said.values, part.module(rows).double())
    assert len(said) == 3
    assert said.unlike is None
    np.save(tmp_path / "rows.npy", rows.numpy())
    from_file = predict(part, tmp_path / "rows.npy")
    assert from_file.names == (0, 1, 2)
    torch.testing.assert_close(from_file.values, said.values)
