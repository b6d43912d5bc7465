"""The trainer turns cluster specs into training. Each pod of a job runs one trainer process.

Consumes `ClusterSpecPublished`, `HandOverOrdered`, `GenerationAbandoned`, `CheckpointSaved`,
`TrainingResumed` and `TaskLeaving` (of this task or of another task of its job). Publishes
`TaskReady`, `GenerationPrepared`, `CheckpointSaved`, `CheckpointFailed`, `CheckpointSkipped`,
`TrainingResumed`, `ProgressReported`, `JobFinished` and `TaskLeaving`.

Read first: `pod/state_machine.py` and `pod/supervise.py` (the actions of a pod for each event),
then `worker/chief.py` (the training process). `pod/` runs without TensorFlow, `worker/` with it;
`protocol.py` has their messages. `doctor/` tries a program for `weir doctor`.
"""
