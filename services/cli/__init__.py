"""The commands of `weir`: a module for each, with `run`, decorated by `command_line.command`.
`services/__main__.py` lists them in `COMMANDS`.

Law: a command publishes and reads only what any NATS client with its credentials could, and knows
only what the messages contain. Results go to standard output. Errors go to standard error: the
cause and the remedy in a line or two, never a traceback. Each command has `EXAMPLES`, which its
help shows; `services/console/trouble.py` has the exit codes.

Read first: `suspend.py`, then `submit.py`. The text and tables of commands are in
`services/console`; the tests of a program by `weir doctor` are in `services/trainer/doctor`.
"""
