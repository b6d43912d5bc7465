"""Hears: every order and fact, and the allocator's word on each job (`weir-jobs`), as one who only
watches. Says: nothing on the bus. To browsers: the board as it is and what changes of it; what
would come of a proposed job. Read first: `face.py`, what a browser is sent; then `service.py`; the
pages themselves are in `static/`.
"""
