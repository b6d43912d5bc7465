"""A simulator: the shipping allocator in a world of discrete events.

Law: no decision is made here. The simulator does the work of monitor, launcher and trainer: it
makes their messages, folds them with `state.apply` and calls `decide.decide` after each fact and at
each wake time, as the live service does. The true speeds, loss curves and future events stay in the
simulator; a policy sees the messages only. Time, seed and clock are arguments: with the same seed,
every policy gets the same world.

Read first: `run.py` (the loop), then `World` in it (the effect of each event); `scenario.py` is the
input.
"""
