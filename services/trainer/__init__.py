"""Train: cluster specs become training. One of these processes runs in each pod of a job.

Consumes `ClusterSpecPublished`, `HandOverOrdered`, `GenerationAbandoned`, `CheckpointSaved`,
`TrainingResumed` and `TaskLeaving` (of this task or of another task of its job). Publishes
`TaskReady`, `GenerationPrepared`, `CheckpointSaved`, `CheckpointFailed`, `CheckpointSkipped`,
`TrainingResumed`, `ProgressReported`, `JobFinished` and `TaskLeaving`.

Read first: `pod/supervise.py` (what a pod does about each fact), then `worker/chief.py` (what the
training process does). `pod/` runs without TensorFlow, `worker/` with it; `protocol.py` is what
they say to each other. `doctor/` tries a program for `weir doctor`.
"""
