"""Benchmarks: commands that compare two things in one run, print ratios, and end with one JSON object on a line."""
