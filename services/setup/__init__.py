"""Creates the streams and buckets, including those of each namespace, and creates lost ones again.
Consumes and publishes no messages. Read first: `service.py`, then `shared/bus/streams.py`.
"""
