"""The causes and effects of a fact, found in the log alone.

Law: nothing is guessed. A message is the cause of another if the later one says so (a decision
names the event that led to it), or if the later one could not exist without it (a hand-over needs
the preparation of the last task). An event whose cause is not a message (a pod of other users, the
failure of a program) is a root and is shown as one.

Read first: `rules.py`, then `chain.py`.
"""
