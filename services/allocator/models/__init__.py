"""What can be known of a job: how fast it would be at other sizes, how its loss falls, what its
kind has shown.

Law: models take observations and give numbers; they know of no policy and decide nothing. Read
first: `speed.py`.
"""
