"""Training programs that benchmarks submit."""
