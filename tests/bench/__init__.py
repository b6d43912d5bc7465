"""Benchmarks: each compares two things in one run, prints ratios, and ends with a JSON object."""

from services.allocator import failures

failures.RAISE_ALL = True  # a policy that raises makes the benchmark fail
