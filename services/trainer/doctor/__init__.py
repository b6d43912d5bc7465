"""`weir doctor`: try a program before it costs anything.

`examine.py` runs the program in a process of its own and reports `observations.py`; `findings.py`
and `job_fit.py` turn these into findings for a person.
"""
