"""The reason for a job's size, and the changes that would give it a larger one.

Law: every explanation comes from the shipping decision, on copies of a state. The obstacle is the
reason that `decide` gives at the moment. A remedy is a change with which `decide` gives the job
more, on a copy in which only that fact is changed.

Read first: `explanation.py` (the answer), then `explain.py` (how it is found).
"""
