"""Consumes: every order and fact, and the job views (`weir-jobs`), without a durable consumer.
Publishes: nothing on the bus; to browsers the board, its changes, and what-if answers.
Read first: `browser_updates.py`, then `service.py`; the page itself is in `static/`.
"""
