"""The commands of `weir`: one module each, with `arguments(parser)` and `run(args) -> int`.

Law: a command publishes and reads only what any NATS client with its credentials could, and knows
only what the messages say. Results go to standard output. What a person must know or do goes to
standard error, in a line or two, never as a traceback, with the next step. Each command has
`EXAMPLES`, which its help shows; `trouble.py` has the exit codes.

Read first: `submit.py`, then `events.py`. `contract/` makes the AsyncAPI document, `diagnosis/` is
for `weir doctor`, `shells/` for completion. What a command draws is in `services/console`.
"""
