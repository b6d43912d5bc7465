"""The Kubernetes API, as the monitor and the launcher use it: one way to ask, and one way to look.

Law: what is asked goes through one gate, so that a program keeps within a limit of its own, rests
when the server says so, and counts what it asks. What is looked at is listed page by page and then
watched, once a kind, and only what is needed of each object is kept. Read first: `pacing.py`, then
`reader.py`.
"""
