"""The report on one job: a page in itself, without script or request, drawn from the read model
(`services/console/board/`).

Law: pure, from facts to text. Every number is of a fact or follows from facts by a formula that
stands in `account.py`, `foresight.py` or `services/console/board/figures.py`, and the page names it.

Read first: `account.py`, where time and cores went; `page.py`, what stands on the page in which
order.
"""
