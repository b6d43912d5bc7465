"""What a person types: `weir <command>`, one command a module, each with `arguments(parser)` and `run(args) -> int`.

The law: a command says and hears what anybody could over NATS, and knows no more than the messages say. Results go to
standard output; what a person must know or do goes to standard error, in a line or two, never as a traceback. Exit
codes: 0 done, 1 refused or failed, 2 wrong use, 130 interrupted, 141 nobody reads on.

Read first: `submit.py`, then `events.py`. Pure: `request_file`, `filters`, `sentences`, `event_line`, `jobs_table`,
`standing`, `pod_choice`, `program_check`, `absence`, `moments`, `explained`, `otherwise`, `unexplained`,
`words`.
"""
