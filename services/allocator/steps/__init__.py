"""The steps of one decision. Each returns the verdict on one job, or None if it does not apply.
`decide.py` has their order.
"""
