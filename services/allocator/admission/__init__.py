"""Accept or reject requests. A rejection names every reason, in words for the user."""
