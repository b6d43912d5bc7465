"""How room is divided among jobs: what each could be, what that is worth, and who gets it.

Law: worth and cost are numbers here; what they mean, the policies say. Read first: `staircase.py`, `auction.py`.
"""
