"""A training program without a loss and without data."""


def model(): ...


def optimizer(): ...


def examples():
    return 1
