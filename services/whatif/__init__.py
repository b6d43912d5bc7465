"""The shipping decision on copies of a state: simulator, `weir explain`, `weir decide`.

No service's decision depends on it; commands, the page and benchmarks use it.
"""
