"""Benchmarks: commands that compare two things in one run, print ratios, and end with one JSON
object on a line.
"""

from services.allocator import failures

failures.RAISE_ALL = True  # a policy that fails fails the benchmark
