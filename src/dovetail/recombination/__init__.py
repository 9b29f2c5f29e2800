"""Every front with every head, at once: who works with whom, without any training.

>>> from dovetail import recombination
>>> recombination.recombine.__name__
'recombine'
"""

from dovetail.recombination.recombining import recombine
from dovetail.recombination.record import Pair, Recombination

__all__ = ["Pair", "Recombination", "recombine"]
