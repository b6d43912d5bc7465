"""The Kubernetes API, as the monitor and the launcher use it: one client, and one list-and-watch.

Law: every request passes one rate limiter, so that a program keeps its own limit, pauses when the
server asks for it, and counts its requests. Objects are listed page by page and then watched, once
per kind; only the needed fields are kept. Read first: `client.py`.
"""
