"""Weir: elastic TensorFlow training with parameter servers. `services/README.md` has the
architecture.

`monitor`, `allocator`, `launcher` and `trainer` are the services; `local` is a Kubernetes on one
machine; `cli` has the commands, `console` what people look at, `whatif` the decision on copies, and
`setup` creates the streams.
"""
