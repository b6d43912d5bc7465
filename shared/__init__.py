"""The words and the wire: messages, subjects, the bus, settings, logs. Nothing here knows a
service.

Read first: `messages.py`, which tells the whole story in the order it happens.
"""
