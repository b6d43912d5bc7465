"""Programs that people have, each with a reference: the same program in one process."""
