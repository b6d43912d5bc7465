"""The read model that `weir top`, the page and the report draw from.

Law: a pure fold of the facts on the bus, on top of the allocator's own fold
(`services/allocator/state/state.py`). No number on a screen is computed elsewhere, and none is
invented: each comes from a fact, or from facts by a formula in this package.

Read first: `board.py`, the whole board; `job_history.py`, one job; `cluster.py`, the nodes and
time series; `figures.py`, what follows by formula.
"""
