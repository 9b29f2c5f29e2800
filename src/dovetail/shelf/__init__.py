"""The shelf: a folder of parts, each ``name@version``; the folder is the truth.

``store`` holds the :class:`~dovetail.shelf.store.Shelf`; ``writing`` changes it, ``index`` lists
and filters it quickly, ``listing`` shows it, ``verify`` re-reads everything, ``fits`` keeps what
was measured of joined parts, ``routes`` finds the way from a front to a head, ``hub`` shares.
"""
