"""What `weir doctor` makes of what was seen: facts in, findings out. Pure.

loss.py      of labels beside outputs
source.py    of the text alone          seen.py    of what a trainer's process saw          fit.py    beside its job
"""
