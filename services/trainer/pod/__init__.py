"""The supervisor of one pod. It imports no TensorFlow: its child processes do.

`service.py` receives facts from the bus and from the children; `supervise.py` decides what the pod
does about each; `executor.py` and `publisher.py` act.
"""
