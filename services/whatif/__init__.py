"""The shipping decision on copies of a state: simulator, `weir explain`, `weir decide`. Nothing live
imports it.
"""
