"""What a person types: `weir <command>`, one command a module, each with `arguments(parser)` and
`run(args) -> int`.

The law: a command says and hears what anybody could over NATS, and knows no more than the messages
say. Results go to standard output; what a person must know or do goes to standard error, in a line
or two, never as a traceback, and says what to do next. Each has `EXAMPLES`, which its help shows;
how it may end is in `trouble.py`.

Read first: `submit.py`, then `events.py`. Pure: `request_file`, `filters`, `sentences`,
`event_line`, `jobs_table`, `standing`, `pod_choice`, `program_check`, `absence`, `moments`,
`explained`, `otherwise`, `unexplained`, `words`, `columns`, `event_name`, `kinds`, `parsing`; and
in folders of their own `causes/` (why), `contract/` (asyncapi), `diagnosis/` (doctor), `screen/`
(top), `shells/` (completion).
"""
