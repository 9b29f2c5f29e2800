"""Batch norm, read aloud: visit every channel, and every value of it."""

from __future__ import annotations

import torch


def values_of_channel(x, channel):
    """All values of one channel of a batch of vectors or maps, in a row."""
    return x.transpose(0, 1)[channel].reshape(-1)


def statistics_by_hand(x):
    """Mean, biased variance and unbiased variance of each channel."""
    means, biased, unbiased = [], [], []
    for channel in range(x.shape[1]):
        values = values_of_channel(x, channel).double()
        mean = values.sum() / len(values)
        squares = ((values - mean) ** 2).sum()
        means.append(mean)
        biased.append(squares / len(values))
        unbiased.append(squares / (len(values) - 1))
    return tuple(torch.stack(column).float() for column in (means, biased, unbiased))


def normalised_by_hand(x, mean, variance, weight, bias, eps):
    """(x - mean) / sqrt(variance + eps) * weight + bias, channel by channel."""
    result = torch.empty_like(x)
    for channel in range(x.shape[1]):
        scale = weight[channel] / (variance[channel] + eps) ** 0.5
        result[:, channel] = (x[:, channel] - mean[channel]) * scale + bias[channel]
    return result
