"""It happens: cluster specs become training.

Hears `ClusterSpecPublished`, `HandOverOrdered`, `GenerationAbandoned`, `CheckpointSaved`,
`TrainingResumed`, `TaskLeaving` (of itself, or of another task of its job). Says `TaskReady`,
`GenerationPrepared`, `CheckpointSaved`, `CheckpointFailed`, `CheckpointSkipped`, `TrainingResumed`,
`ProgressReported`, `JobFinished`, `TaskLeaving`. Read first: `supervise.py` (what a pod does about
each fact), then `chief.py` (what the training child does).
"""
