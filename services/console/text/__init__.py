"""Messages as sentences, and stored messages and log lines as lines on a screen.

Read first: `sentences.py`; then `event_lines.py` and `log_lines.py`.
"""
