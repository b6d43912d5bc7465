"""The kubelet: pods of the nodes it owns become processes, and what becomes of them becomes their
status.

rules.py    what to do about a pod: start, stop, kill, resize, take away       (pure)
status.py   what a pod's containers did -> the status everybody reads          (pure)
launch.py   a container's command, environment and folder                      (pure)
pod.py      one pod's life: its processes from the first to the last
cgroups.py  cpu and memory limits, and how much was used, where the machine lets us
machine.py  which of the three implementations of that this machine allows
keeper.py   nobody is left behind, not even when this program is killed
node.py     the nodes: registered, refreshed, measured
"""
