"""The reason for a job's size, and the ways to a larger one: by the shipping decision, on copies.

The law: nothing is explained by a second opinion. The obstacle is that which `decide` names at the
moment; a remedy is a change that makes `decide` give the job more, on a copy in which only the
changed fact is different.

Read first: `explanation.py` (the answer), then `explain.py` (how it is found).
"""
