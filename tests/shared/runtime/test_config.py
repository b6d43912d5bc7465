"""Tests of settings: declared, typed, complete; a misspelt one stops the program."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from shared.runtime import config
from shared.runtime.config import BadSettings, Common


class Oven(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    degrees: Annotated[int, Meta(ge=0)] = 0


class Settings(Common, frozen=True, kw_only=True):
    node: str
    wait_s: float = 2.0
    mode: Literal["slow", "fast"] = "slow"
    tries: int = 3
    ovens: dict[str, Oven] = {}
    doors: tuple[int, ...] = ()


def load(**environ: str) -> Settings:
    return config.load_settings(Settings, "baker", environ)


def test_an_unset_setting_has_its_default() -> None:
    assert load(WEIR_BAKER_NODE="n1") == Settings(node="n1")


def test_values_are_read_as_their_types() -> None:
    chosen = load(
        WEIR_BAKER_NODE="7", WEIR_BAKER_WAIT_S="0.5", WEIR_BAKER_TRIES="4", WEIR_BAKER_MODE="fast"
    )

    assert chosen == Settings(node="7", wait_s=0.5, tries=4, mode="fast")


def test_a_list_is_written_with_commas() -> None:
    assert load(WEIR_BAKER_NODE="n1", WEIR_BAKER_DOORS="3, 4,").doors == (3, 4)
    assert load(WEIR_BAKER_NODE="n1", WEIR_BAKER_DOORS="").doors == ()
    with pytest.raises(BadSettings, match="WEIR_BAKER_DOORS='3,open'"):
        load(WEIR_BAKER_NODE="n1", WEIR_BAKER_DOORS="3,open")


def test_shared_settings_have_one_variable_for_all_services() -> None:
    assert (
        load(WEIR_BAKER_NODE="n1", WEIR_NATS_URL="nats://there", WEIR_LOG_JSON="true").nats_url
        == "nats://there"
    )


def test_a_misspelt_setting_stops_the_program_and_shows_the_right_ones() -> None:
    with pytest.raises(BadSettings, match=r"WEIR_BAKER_WAITS.*WEIR_BAKER_WAIT_S"):
        load(WEIR_BAKER_NODE="n1", WEIR_BAKER_WAITS="1")


def test_every_wrong_value_is_listed_at_once() -> None:
    with pytest.raises(BadSettings) as caught:
        load(
            WEIR_BAKER_NODE="n1",
            WEIR_BAKER_WAIT_S="soon",
            WEIR_BAKER_MODE="mild",
            WEIR_BAKER_TIRES="1",
        )

    assert len(str(caught.value).splitlines()) == 3
    for name in ("WEIR_BAKER_WAIT_S='soon'", "WEIR_BAKER_MODE='mild'", "WEIR_BAKER_TIRES"):
        assert name in str(caught.value)


def test_settings_of_other_services_are_ignored() -> None:
    assert load(WEIR_BAKER_NODE="n1", WEIR_BUTCHER_KNIFE="sharp", HOME="/") == Settings(node="n1")


def test_a_setting_without_a_default_that_is_missing_is_named() -> None:
    with pytest.raises(BadSettings, match="WEIR_BAKER_NODE"):
        load()


def test_a_missing_setting_is_listed_beside_the_wrong_ones() -> None:
    with pytest.raises(
        BadSettings,
        match=r"(?s)WEIR_BAKER_TRIES.*WEIR_BAKER_NODE|WEIR_BAKER_NODE.*WEIR_BAKER_TRIES",
    ):
        load(WEIR_BAKER_TRIES="many")


def test_a_mapping_is_written_as_json() -> None:
    chosen = load(WEIR_BAKER_NODE="n1", WEIR_BAKER_OVENS='{"left": {"degrees": 220}, "right": {}}')
    assert chosen.ovens == {"left": Oven(220), "right": Oven()}


def test_every_wrong_entry_of_a_mapping_is_listed() -> None:
    with pytest.raises(BadSettings) as caught:
        load(
            WEIR_BAKER_NODE="n1",
            WEIR_BAKER_OVENS='{"left": {"degrees": -1}, "right": {"degree": 1}, "back": {}}',
        )
    told = str(caught.value).splitlines()
    assert (
        len(told) == 2
        and "left: Expected `int` >= 0" in told[0]
        and "right: " in told[1]
        and "`degree`" in told[1]
    )


@pytest.mark.parametrize("text", ["", "{", "[1]", "220", '{"left": 1}'])
def test_a_value_that_is_no_mapping_is_an_error(text: str) -> None:
    with pytest.raises(BadSettings, match="WEIR_BAKER_OVENS"):
        load(WEIR_BAKER_NODE="n1", WEIR_BAKER_OVENS=text)
