"""The decision for a caller from outside: a picture of the world as a document in, the whole
wanted state out.

Law: `decide.decide` decides, unchanged, over the same state that the service folds. Here documents
only become that state, and its answer a document. State is kept from one document to the next as in
the live service: decisions, observations, wishes.

Read first: `document.py` (the input), `job_state.py` (a job of it as state), `answer.py`.
"""
