"""The steps of one decision, in the order in which `decide.py` takes them. Each returns the verdict
on one job, or None if it does not apply.
"""
