"""The commands of `weir`: one module each, with `EXAMPLES` for its help and a click command `run`
that returns an exit code (`services/console/trouble.py`).

Law: a command publishes and reads only with the permissions of its credentials, like any NATS
client, and knows only the messages. Results go to standard output. Errors and hints go to standard
error, in a line or two with the remedy, never as a traceback.

Read first: `submit.py`, then `events.py`. The pictures and tables of commands are in
`services/console`.
"""
