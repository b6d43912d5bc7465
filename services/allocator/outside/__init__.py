"""The decision for whoever asks from outside: a picture of the world as a document in, the whole wanted state out.

Law: what decides is `decide.decide`, unchanged, over the same state that the service folds; here documents only become
that state, and its answer a document. State is kept from one document to the next as in the live service: what was
decided, observed and wished for. What stayed the same is not made anew.

Read first: `document.py` (what is said), `mirror.py` (how it becomes state), `answer.py`.
"""
