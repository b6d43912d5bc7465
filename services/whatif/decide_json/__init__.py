"""The decision for external callers: a document that describes the cluster in, the whole desired
state out.

Law: `decide.decide` decides, unchanged, over the same state that the service folds. This package
only converts documents to that state, and the decisions to a document. As in the live service, the
state is kept from one document to the next: decisions, observations, pending changes.

Read first: `document.py` (the input), `job_state.py` (the state of one job in it), `answer.py`.
"""
