"""It happens: cluster specs become training.

Hears `ClusterSpecPublished`, `HandOverOrdered`, `GenerationAbandoned`, `CheckpointSaved`, `TrainingResumed`.
Says `TaskReady`, `GenerationPrepared`, `CheckpointSaved`, `TrainingResumed`, `ProgressReported`, `JobFinished`.
Read first: `supervise.py` (what a pod does about each fact), then `chief.py` (what the training child does).
"""
