"""What a part is trained towards: tensors in, a scalar out."""

from dovetail.objectives.amplified import NegativeCorrelation, SparseCrossEntropy, SquaredError
from dovetail.objectives.compatible_losses import project_conflicts
from dovetail.objectives.kernel_machine import KernelMachine, kernel_machine
from dovetail.objectives.pairwise import (
    KINDS,
    MeanKernel,
    Pairwise,
    Relations,
    mean_kernel,
    relations_of_labels,
    relations_of_masks,
    relations_of_pairs,
)
from dovetail.objectives.pretext import Pretext
from dovetail.objectives.pretexts import PRETEXTS, Jigsaw, Rotation, Views, pretext_named
from dovetail.objectives.unit import unit_rows

__all__ = [
    "KINDS",
    "PRETEXTS",
    "Jigsaw",
    "KernelMachine",
    "MeanKernel",
    "NegativeCorrelation",
    "Pairwise",
    "Pretext",
    "Relations",
    "Rotation",
    "SparseCrossEntropy",
    "SquaredError",
    "Views",
    "kernel_machine",
    "mean_kernel",
    "pretext_named",
    "project_conflicts",
    "relations_of_labels",
    "relations_of_masks",
    "relations_of_pairs",
    "unit_rows",
]
