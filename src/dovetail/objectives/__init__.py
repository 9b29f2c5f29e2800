"""What a part is trained towards: tensors in, a scalar out."""

from dovetail.objectives.kernel_machine import KernelMachine, kernel_machine
from dovetail.objectives.pairwise import KINDS, MeanKernel, Pairwise, mean_kernel
from dovetail.objectives.relations import (
    Relations,
    relations_of_labels,
    relations_of_masks,
    relations_of_pairs,
)
from dovetail.objectives.unit import unit_rows

__all__ = [
    "KINDS",
    "KernelMachine",
    "MeanKernel",
    "Pairwise",
    "Relations",
    "kernel_machine",
    "mean_kernel",
    "relations_of_labels",
    "relations_of_masks",
    "relations_of_pairs",
    "unit_rows",
]
