"""The child processes: chief, ps and worker of one generation. Code that needs TensorFlow.

`child.py` is where a process begins; `chief.py` is the training of one generation. Modules that
import no TensorFlow, such as `shard_ledger.py` and `scaling.py`, are used by these processes alone
or explain their decisions elsewhere.
"""
