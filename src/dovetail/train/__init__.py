"""Training by gradient descent.  Every trainer copies what it is given and returns a ``Fit``.

>>> from dovetail import train
>>> train.end_to_end.__name__, train.modular.__name__
('end_to_end', 'modular')
"""

from dovetail.train.compatible import compatible
from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit
from dovetail.train.fitting.record import CompatibleFit
from dovetail.train.modular import modular
from dovetail.train.options import Options
from dovetail.train.self_supervised import self_supervised
from dovetail.train.snapshots import Snapshots
from dovetail.train.stitch import stitch
from dovetail.train.uses.devices import shared_head
from dovetail.train.uses.domain import adapt_domain
from dovetail.train.uses.domain_judge import judge_adaptation
from dovetail.train.uses.extension import extend_classes
from dovetail.train.uses.extension_judge import judge_extension
from dovetail.train.uses.replacement import replace_front
from dovetail.train.uses.replacement_judge import judge_replacement
from dovetail.train.uses.transfer import transfer
from dovetail.train.weight_history import WeightHistory

__all__ = [
    "CompatibleFit",
    "Fit",
    "Options",
    "Snapshots",
    "WeightHistory",
    "adapt_domain",
    "compatible",
    "end_to_end",
    "extend_classes",
    "judge_adaptation",
    "judge_extension",
    "judge_replacement",
    "modular",
    "replace_front",
    "self_supervised",
    "shared_head",
    "stitch",
    "transfer",
]
