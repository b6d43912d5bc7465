"""The launcher turns decisions into pods, and ready pods into cluster specs.

Consumes `AllocationDecided`, `TaskReady`, `GenerationPrepared`, `CheckpointSaved`,
`CheckpointFailed`, `TrainingResumed`, `ProgressReported`, `JobFinished`, and pods, services,
network policies and nodes of the Kubernetes API. Publishes `ClusterSpecPublished`,
`HandOverOrdered`, `GenerationAbandoned`, `TaskStarted`, `TaskLeaving`, `TaskExited`, `TaskUpdated`.
Read first: `reconcile.py`, then `steps/generations.py`.
"""
