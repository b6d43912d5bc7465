"""The report on one job: one HTML page without scripts or requests, drawn from the read model.

Law: pure, from facts to text. Every number is a fact or follows from facts by a formula in
`account.py` or `services/console/board/figures.py`, and the page names the formula.

Read first: `account.py`, the account of time and cores; `page.py`, the order of the page.
"""
