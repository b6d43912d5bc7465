"""Why a job has what it has, and what it would take to get more: asked of the shipping decision, on copies.

The law: nothing is explained by a second opinion. What stands in the way is what `decide` says at that moment; what
would help is what makes `decide` give the job more, on a copy in which just that is otherwise.

Read first: `explanation.py` (the answer), then `explain.py` (how it is found).
"""
