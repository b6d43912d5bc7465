"""May a request become a job: every reason why not, in words for a person."""
