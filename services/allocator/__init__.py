"""The allocator decides the size and the nodes of every job.

Consumes requests, capacity, and the outcome of decisions: started, leaving, exited, abandoned,
resumed, finished. Publishes `JobAccepted` or `JobRejected`, `JobChanged` or `ChangeRejected`,
`AllocationDecided`, and `JobFinished` if no trainer can publish it. Read first: `decide.py`, the
main loop on one screen; then `state/state.py`, the fold; then `policies/`.
"""
