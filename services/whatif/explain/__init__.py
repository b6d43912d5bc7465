"""The reason for a job's size, and the ways to a larger one: by the shipping decision, on copies.

Law: every explanation comes from the shipping decision. The obstacle is the reason that `decide`
gives at the moment; a remedy is a change that makes `decide` give the job more, on a copy with only
that fact changed.

Read first: `explanation.py` (the answer), then `explain.py` (how it is found).
"""
