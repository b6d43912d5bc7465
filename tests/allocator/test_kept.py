"""Answers that are kept while the same object is asked about."""

from __future__ import annotations

from weakref import ref

from services.allocator.kept import Kept, KeptEach, fade


def test_the_same_object_is_asked_about_once_and_an_equal_one_again() -> None:
    asked: list[tuple[int, ...]] = []
    total = Kept(lambda numbers: asked.append(numbers) or sum(numbers))
    one, same = (1, 2, 3), tuple([1, 2, 3])
    assert [total(one), total(one), total(same)] == [6, 6, 6]
    assert len(asked) == 2


def test_what_was_asked_longest_ago_is_forgotten() -> None:
    asked: list[tuple[int]] = []
    first = Kept(lambda one: asked.append(one) or one[0], most=4)
    things = [(number,) for number in range(9)]
    assert [first(thing) for thing in things] == [*range(9)]
    assert [first(things[4]), first(things[8]), first(things[0])] == [4, 8, 0]
    assert len(asked) == 10 and len(first.known) + len(first.fading) <= 8


def test_an_answer_is_never_that_of_an_object_which_is_gone() -> None:
    """An id is used again once its object is gone; so what is remembered must stay alive."""
    first = Kept(lambda one: one[0], most=8)
    assert [first((number,)) for number in range(1000)] == list(range(1000))


class Thing:
    """Whose end can be seen."""


def test_what_nobody_asked_for_between_two_fadings_is_let_go_and_what_somebody_did_is_not() -> None:
    asked: list[Thing] = []
    named, pairs = Kept(lambda thing: asked.append(thing) or "it"), KeptEach(lambda some: some, id)
    wanted, left = Thing(), Thing()
    gone = ref(left)
    named(wanted), named(left), pairs([wanted, left])
    asked.clear()
    del left
    for _ in range(2):
        fade()
        assert named(wanted) == "it" and pairs([wanted]) == [wanted]
    assert not asked and gone() is None


Asked = list[list[int]]


def negatives(most: int = 8) -> tuple[KeptEach[int, int], Asked]:
    """And what it was asked."""
    asked: Asked = []
    return KeptEach(lambda some: asked.append([*some]) or [-n for n in some], key=lambda n: n, most=most), asked


def test_all_that_is_new_is_asked_about_together_and_once():
    negative, asked = negatives()
    assert negative([1, 2, 2]) == [-1, -2, -2] and negative([2, 3, 1, 4]) == [-2, -3, -1, -4] and negative([]) == []
    assert asked == [[1, 2], [3, 4]]


def test_where_not_all_can_be_remembered_every_answer_is_still_given():
    negative, asked = negatives(most=3)
    assert negative([1, 2]) == [-1, -2] and negative([2, 3, 4]) == [-2, -3, -4]
    assert negative([1, 2, 3, 4, 5]) == [-1, -2, -3, -4, -5]
    assert asked == [[1, 2], [3, 4], [5]]


def test_of_many_of_which_few_are_others_than_the_last_time_only_those_are_looked_for():
    negative, asked = negatives(most=64)
    first = negative([*range(1, 33)])
    first[0] = 99  # the answer is whoever's asked
    assert negative([*range(1, 16), 40, *range(17, 33)]) == [*range(-1, -16, -1), -40, *range(-17, -33, -1)]
    fade()
    assert negative([*range(1, 33)]) == [*range(-1, -33, -1)]
    assert asked == [[*range(1, 33)], [40]]


def test_what_was_asked_about_all_the_time_outlives_what_was_asked_about_once():
    """One of many things is another each time, until more are new than can be remembered."""
    negative, asked = negatives(most=64)
    always = [*range(1, 48)]
    for other in range(2000, 2100):
        negative([*always, other])
    fade()
    asked.clear()
    assert negative(always) == [-n for n in always] and not asked
