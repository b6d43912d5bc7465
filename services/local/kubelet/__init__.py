"""The kubelet: runs the pods of its nodes as processes and writes their status.

kubelet.py         main loop, node status, usage, logs of past pods
pod_worker.py      one pod: its processes from the first to the last
container.py       one container: command, environment, process
pod_status.py      decisions: the action for a pod, the status of a pod        (pure)
cgroup_manager.py  CPU and memory limits and measurement
processes.py       find and kill processes of pods, also after a crash
"""
