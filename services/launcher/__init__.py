"""Hears: AllocationDecided, TaskReady, GenerationPrepared, CheckpointSaved, CheckpointFailed,
TrainingResumed, JobFinished; and pods. Says: ClusterSpecPublished, HandOverOrdered,
GenerationAbandoned, TaskStarted, TaskLeaving, TaskExited, TaskUpdated. Read first: `reconcile.py`,
then `generations.py`. The newest generation wins, everything else is stale.
"""
