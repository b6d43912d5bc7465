"""`weir top` as it is drawn: from a board, a time and a size. All of it pure.

The law: every number is the board's (`services/console/board/`), and nothing is computed here but widths. A
job has a letter and a colour, so that no colour has to be told apart; the colours are Okabe and
Ito's.

Read first: `whole.py`.
"""
