"""The supervisor of one pod. It imports no TensorFlow: its child processes do.

The bus, the children, timers and signals put events into one queue. `service.py` takes
them, `state_machine.py` and `supervise.py` decide the actions, and `service.py`, `executor.py` and
`publisher.py` perform them.
"""
