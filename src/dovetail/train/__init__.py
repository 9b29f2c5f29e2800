"""Training by gradient descent.  Every trainer copies what it is given and returns a ``Fit``.

>>> from dovetail import train
>>> train.end_to_end.__name__
'end_to_end'
"""

from dovetail.train.end_to_end import end_to_end
from dovetail.train.fit import Fit
from dovetail.train.options import Options

__all__ = ["Fit", "Options", "end_to_end"]
