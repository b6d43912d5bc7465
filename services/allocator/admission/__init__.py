"""Accept or reject requests: every reason against one, in words for a person."""
