"""Kubernetes objects: kinds, names, resources, selectors, patches, admission. All of it is pure.

Written by hand: the official client models objects, but has no defaults, admission or selectors.
"""
