"""Training by gradient descent.  Every trainer copies what it is given and returns a ``Fit``.

>>> from dovetail import train
>>> train.end_to_end.__name__, train.modular.__name__
('end_to_end', 'modular')
"""

from dovetail.train.boosting import boost
from dovetail.train.callbacks import Snapshots, WeightHistory
from dovetail.train.compatible import compatible
from dovetail.train.compatible_record import CompatibleFit
from dovetail.train.end_to_end import end_to_end
from dovetail.train.filtering import Filter
from dovetail.train.fit import Fit
from dovetail.train.layerwise import layerwise
from dovetail.train.memory_plan import plan
from dovetail.train.modular import modular
from dovetail.train.options import Options
from dovetail.train.partition_plan import plan_partitions
from dovetail.train.partitioned import partitioned
from dovetail.train.self_supervised import self_supervised
from dovetail.train.stitch import stitch

__all__ = [
    "CompatibleFit",
    "Filter",
    "Fit",
    "Options",
    "Snapshots",
    "WeightHistory",
    "boost",
    "compatible",
    "end_to_end",
    "layerwise",
    "modular",
    "partitioned",
    "plan",
    "plan_partitions",
    "self_supervised",
    "stitch",
]
