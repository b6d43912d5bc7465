"""What a trainer's process saw of a program, beside what another process saw of the same examples.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from services.cli.diagnosis import loss
from services.cli.diagnosis.finding import Finding, advice, fine, size, wrong
from services.cli.examples import example
from services.trainer.examined import Examined
from shared.text import format_count, format_names

NAMED = 4
"""So many examples, or variables, are told by name."""
READ_S = 0.05
"""A batch that is read faster keeps no worker waiting worth a word."""
WHOLE_BYTES = 1e6
"""A table that is read whole and is smaller than this costs little more than the rest of a
model.
"""
SHUFFLED = "shuffle once with a fixed seed, outside of dataset(): numpy.random.default_rng(0).permutation(examples())"
SAME = "make dataset(start, stop) a pure function of the numbers: a fixed seed, a sorted listing, no shuffle inside it"
NO_MODULE = r"ModuleNotFoundError: No module named '([\w.]+)'"
REMEDIES = (
    (NO_MODULE, "install {0} here and in the job's image"),
    (
        r"FileNotFoundError|NotFoundError",
        "a pod holds the program alone: read data from a volume, at a path from /",
    ),
    (r"is it batched", "take .batch(...) out of dataset()"),
    (
        r"is stuck: ",
        "a call of the program has to return; what it waits for is not there in a pod either",
    ),
    (
        r"SIGKILL",
        "try it with more memory, or with smaller tables: model() is built twice in this process",
    ),
)
MEND = "mend it: a job would end with this as its cause"


def of_program(here: Examined, there: Examined, left: Collection[str] = ()) -> Iterator[Finding]:
    """`here`: the process that tried all; `there`: the one that only read; `left`: modules of which
    it has been said that they do not come along, so that failing of one is no news.
    """
    if here.loaded_s is not None and here.examples is not None:
        yield fine(
            f"it is imported in {here.loaded_s:.1f} s, and has {format_count(here.examples, 'example')}"
        )
    if here.read_s is not None:
        yield from _examples(here, there)
    if here.variables is not None:
        yield from _model(here)
    if here.update_s is not None:
        yield from _update(here, here.update_s)
    if here.evaluated is not None:
        absent = "it has no evaluation(), so the job's end has no metrics"
        yield fine("evaluation() and metrics() work" if here.evaluated else absent)
    if (cause := here.failed or there.failed) and _lacks(cause) not in left:
        yield failed(cause, here)


def _lacks(cause: str) -> str:
    """The first name of a module that was not found."""
    found = re.search(NO_MODULE, cause)
    return found[1].split(".")[0] if found else ""


def failed(cause: str, here: Examined) -> Finding:
    head, _, more = cause.partition("\n")
    found = ((re.search(pattern, cause), remedy) for pattern, remedy in REMEDIES)
    remedy = next((remedy.format(*match.groups()) for match, remedy in found if match), MEND)
    return wrong(head, loss.mended(cause, here) or remedy, more)


# ---------------------------------------------------------------- examples


def _examples(here: Examined, there: Examined) -> Iterator[Finding]:
    moody = _differing(here.together, here.alone)
    strange = _differing(here.together, there.together) if there.read_s is not None else []
    tried = f"{len(here.together)} of {here.examples:,} tried"
    if moody:
        what = f"example {format_names(list(map(str, moody)), NAMED)} is another one when it is read by itself ({tried})"
        yield wrong(what, SAME)
    elif strange:
        what = f"example {format_names(list(map(str, strange)), NAMED)} is another one in another process ({tried})"
        yield wrong(what, f"{SAME}, and no hash() of a text")
    elif there.read_s is not None:
        yield fine(
            f"the same example for the same number, in a batch, alone, and in another process ({tried})"
        )
    if here.infinite:
        where = format_names(list(map(str, here.infinite)), NAMED)
        remedy = "clean the data: one such batch spoils all weights"
        yield wrong(f"example {where} has a number that is not finite", remedy)
    if here.ordered:
        what = "the labels are sorted, and nothing shuffles examples: the model forgets a class while it sees the next"
        yield advice(what, SHUFFLED)


def _differing(one: dict[int, str], other: dict[int, str]) -> list[int]:
    return sorted(number for number in one if other.get(number, one[number]) != one[number])


# ---------------------------------------------------------------- the model, and an update of it


def _model(here: Examined) -> Iterator[Finding]:
    variables = here.variables or ()
    held = sum(v.bytes for v in variables)
    largest = max(variables, key=lambda v: v.bytes, default=None)
    told = f", of which {largest.name} has {size(largest.bytes)}" if largest else ""
    beside = f"; the optimizer keeps {size(here.slots)} beside them" if here.slots else ""
    yield fine(
        f"the model has {format_count(len(variables), 'variable')} with {size(held)}{told}{beside}"
    )
    if idle := [v.name for v in variables if v.learns is False]:
        what = f"{format_names(idle, NAMED)} never learns: the loss does not depend on it"
        yield advice(what, "leave it out of model(), or use it")
    if whole := [v for v in variables if v.whole and v.bytes >= WHOLE_BYTES]:
        names = format_names([v.name for v in whole], NAMED)
        what = f"each batch reads all of {names}, {size(sum(v.bytes for v in whole))} in all"
        yield advice(
            what,
            f"look rows up with tf.gather(table.value, ids), as the layer Rows in {example('plays.py')} does",
        )
    if here.scheduled:
        what = "the learning rate is a schedule: it counts updates, and with a larger batch an epoch has fewer of them"
        yield advice(what, "give the optimizer a number, or keep batch.min and batch.max equal")
    if here.lossy or here.mixed:
        parts = " and ".join(map(str, (*here.labels, *here.outputs)))
        what = f"loss() compares each example with each: {here.lossy or 'the mean'} of {parts}"
        hint = loss.slipped(here.labels, here.outputs)
        yield wrong(what, hint or "give labels and outputs the same shape, or use keras.losses")


def _update(here: Examined, update_s: float) -> Iterator[Finding]:
    if not here.finite:
        told = "the loss is not finite" if here.loss is None else "weights are not finite"
        remedy = "look at the data, at from_logits, and for a learning rate that is too large"
        yield wrong(f"after two updates {told}", remedy)
    else:
        yield fine(f"an update takes {update_s * 1000:.0f} ms here, at a loss of {here.loss:.4g}")
    read_s = here.read_s or 0.0
    if read_s > max(READ_S, update_s):
        what = f"a batch is read in {read_s * 1000:.0f} ms, longer than its update takes"
        yield advice(what, "load data outside of dataset(), once; it is called for every batch")
