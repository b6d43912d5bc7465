"""The read model: what everything that people look at is drawn from, `weir top`, the page and the
report alike.

Law: a pure fold of the facts on the bus, on top of the allocator's own
(`services/allocator/state/state.py`). No number on any screen is computed elsewhere, and none is
invented: each is of a fact, or of facts by a formula that stands here.

Read first: `board.py`, the whole; `story.py`, one job; `nodes.py`, one node and the sum of all;
`series.py`, how what grows for ever is kept short; `derived.py`, what follows from them;
`changes.py`, what is new between two boards.
"""
