"""Completion of `weir`'s words, as a script for each shell: made from the commands' own parsers.
All of it pure.
"""
