"""Models of jobs that two or more policies share: speed at other sizes, memory, history of a
program.

Law: models take observations and give numbers; they know of no policy and decide nothing. Read
first: `speed.py`.
"""
