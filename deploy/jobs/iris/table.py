"""Read a table of measures, whose last column is a kind."""

import csv
from pathlib import Path

import numpy as np


def read_table(name):
    """Return the measures, standardised, and the number of each row's kind, both in an order that
    was shuffled once with a fixed seed.
    """
    with (Path(__file__).parent / name).open(newline="") as file:
        rows = list(csv.reader(file))[1:]
    names = sorted({row[-1] for row in rows})
    measures = np.array([row[:-1] for row in rows], "float32")
    kinds = np.array([names.index(row[-1]) for row in rows], "int64")
    order = np.random.default_rng(0).permutation(len(rows))
    standardised = (measures - measures.mean(0)) / measures.std(0)
    return standardised[order], kinds[order]
