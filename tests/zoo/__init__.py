"""Typical training programs, each with a reference: the same program in one process."""
