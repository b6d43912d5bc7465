"""Hears: requests, capacity, and what becomes of decisions: leaving, exited, abandoned, resumed, progress, finished.
Says: `JobAccepted` or `JobRejected`, `AllocationDecided`, and `JobFinished` where there is nothing left to decide.
Read first: `decide.py`, the main loop on one screen; then `state.py`, the fold; then `policies/`."""
