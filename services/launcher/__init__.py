"""The launcher turns decisions into pods, and pods into cluster specs.

Consumes `AllocationDecided`, `TaskReady`, `GenerationPrepared`, `CheckpointSaved`,
`CheckpointFailed`, `TrainingResumed`, `JobFinished`, and pods of the Kubernetes API. Publishes
`ClusterSpecPublished`, `HandOverOrdered`, `GenerationAbandoned`, `TaskStarted`, `TaskLeaving`,
`TaskExited`, `TaskUpdated`. Read first: `reconcile.py`, then `steps/generations.py`.
"""
