"""What-if: the shipping allocator over a world of discrete events.

Law: no decision is made here. The simulator plays monitor, launcher and trainer: it makes their
messages, folds them with `state.apply` and asks `decide.decide` after each fact and at each wake
time, as the live service does. The true speeds, loss curves and future events stay on this side; a
policy sees the messages only. Time, seed and clock are arguments: the same seed gives the same
world to every policy.

Read first: `run.py` (the loop), then `World` in it (the effect of each event); `scenario.py` is the
input.
"""
