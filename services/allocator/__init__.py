"""Hears: requests, capacity, and what becomes of decisions: started, leaving, exited, abandoned,
resumed, finished. Says: `JobAccepted` or `JobRejected`, `JobChanged` or `ChangeRejected`,
`AllocationDecided`, and `JobFinished` where there is nothing left to decide. Read first:
`decide.py`, the main loop on one screen; then `state.py`, the fold; then `policies/`.
"""
