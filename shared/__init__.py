"""Messages, subjects, the bus, settings and logs. Nothing here imports a service.

Read first: `messages.py`, which has all messages in the order in which they occur.
"""
