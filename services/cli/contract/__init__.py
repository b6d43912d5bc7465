"""Every subject and every message on the bus, as a document that other tools read: all of it pure.

The law: nothing is written down twice. Subjects, bodies and who says and hears what come from the
message classes and from the table of permissions; a word that is only here is about AsyncAPI.

Read first: `document.py`.
"""
