"""Training by gradient descent.  Every trainer copies what it is given and returns a ``Fit``.

>>> from dovetail import train
>>> train.end_to_end.__name__, train.modular.__name__
('end_to_end', 'modular')
"""

from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit
from dovetail.train.modular import modular
from dovetail.train.options import Options
from dovetail.train.snapshots import Snapshots

__all__ = ["Fit", "Options", "Snapshots", "end_to_end", "modular"]
