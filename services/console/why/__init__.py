"""What led to a fact, and what came of it: found in the log alone. All of it pure.

The law: nothing is guessed. One message is the cause of another where the later one says so (a
decision names the event that led to it), or where it could not be without it (a hand-over needs the
last task's preparation). What no message tells (why a stranger's pod came, why a program failed) is
a root, and is called one.

Read first: `rules.py`, then `chain.py`.
"""
