"""Put parts that fit to use, and say why others do not: the verb that uses all the others.

>>> from dovetail import reuse
>>> reuse.explain_fit.__name__, reuse.adapt_domain.__name__
('explain_fit', 'adapt_domain')
"""

from dovetail.reuse.devices import shared_head
from dovetail.reuse.domain import adapt_domain, judge_adaptation
from dovetail.reuse.explain import explain_fit
from dovetail.reuse.exporting import export
from dovetail.reuse.extension import extend_classes
from dovetail.reuse.fitting import Fitted, fit
from dovetail.reuse.judged_extension import judge_extension
from dovetail.reuse.judged_replacement import judge_replacement
from dovetail.reuse.packing import pack_part
from dovetail.reuse.replacement import replace_front
from dovetail.reuse.transfer import transfer

__all__ = [
    # from data to a model
    "Fitted",
    "fit",
    # why not, and what would help
    "explain_fit",
    # uses
    "adapt_domain",
    "extend_classes",
    "replace_front",
    "shared_head",
    "transfer",
    # what they brought
    "judge_adaptation",
    "judge_extension",
    "judge_replacement",
    # ship
    "export",
    "pack_part",
]
