"""What would happen: the shipping allocator over a world of discrete events.

Law: no decision is made here. The simulator plays monitor, launcher and trainer: it makes their messages, folds them
with `state.apply` and asks `decide.decide` whenever something was heard or a wake time has come, as the live service
does. What is true (speeds, loss curves, what comes) stays on this side; a policy sees the messages only. Time, seed and
clock are arguments: the same seed gives the same world, whoever decides.

Read first: `run.py` (the loop), then `world.py` (what each event does); `scenario.py` says what is handed in.
"""
