"""Hears: nothing. Says: nothing. Makes the streams and buckets, those of every namespace of jobs
too, and makes again what a server has lost. Read first: `service.py`; what is made, and how, is in
`shared/bus/streams.py`.
"""
