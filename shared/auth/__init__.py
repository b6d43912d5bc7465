"""Credentials and permissions: which user of the bus may publish and read which subjects."""
