"""The shelf: a folder of parts, each ``name@version``; the folder is the truth.

``store`` holds the :class:`~dovetail.shelf.store.Shelf`; ``index`` lists it quickly, ``search``
filters it, ``lineage`` follows parents, ``verify`` re-reads everything, ``listing`` shows it,
``fits`` keeps what was measured of joined parts, ``paths`` finds the way from a front to a head.
"""
