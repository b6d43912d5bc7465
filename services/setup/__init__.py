"""Creates the streams and buckets, for every namespace too, and creates lost ones again. Consumes
and publishes no messages. Read first: `service.py`, then `shared/bus/streams.py`.
"""
