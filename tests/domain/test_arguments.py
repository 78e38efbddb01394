"""Which values a declared argument accepts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.crawlers.arguments import Argument, ArgumentType, fits
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind, effective_args
from crawler_lifecycle.domain.errors import InvalidRequest


def _crawler(**args: Argument) -> CrawlerDefinition:
    return CrawlerDefinition("c", CrawlerKind.COMMAND, command=["true"], args=args)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (
            "integer",
            ["0", "-3", "+7", "9" * 18],
            ["", "1.0", "1e3", "9" * 19, "٣", " 1", "1_000", "true"],
        ),
        (
            "number",
            ["0", "-3.5", ".5", "1e-3", "2."],
            ["", "nan", "inf", "1e999", "1,5", "0x1", "1_0", "١", "1\n"],
        ),
        ("boolean", ["true", "false"], ["", "True", "yes", "1", "0"]),
        ("string", ["", "anything", "١"], []),
    ],
)
def test_a_type_takes_its_texts_and_no_others(kind: str, good: list[str], bad: list[str]) -> None:
    crawler = _crawler(x=Argument(type=ArgumentType(kind)))
    for text in good:
        assert effective_args(crawler, {"x": text}) == {"x": text}
    for text in bad:
        with pytest.raises(InvalidRequest, match=r"(?s)^args\.x: .* is not allowed; give "):
            effective_args(crawler, {"x": text})


def test_choices_are_the_only_values() -> None:
    crawler = _crawler(x=Argument(choices=["de", "fr"]))
    assert effective_args(crawler, {"x": "fr"}) == {"x": "fr"}
    with pytest.raises(InvalidRequest, match=r"^args\.x: 'es' is not allowed; give one of de, fr$"):
        effective_args(crawler, {"x": "es"})


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (
            Argument(type=ArgumentType.INTEGER, default="many"),
            r"^c: args\.x\.default: 'many' is not allowed; give a whole",
        ),
        (
            Argument(default="es", choices=["de"]),
            r"^c: args\.x\.default: 'es' is not allowed; give one of de",
        ),
        (
            Argument(type=ArgumentType.NUMBER, choices=["1", "b"]),
            r"^c: args\.x\.choices\[1\]: 'b' is not allowed",
        ),
        (
            Argument(description="x" * 1001),
            r"^c: args\.x\.description: 1001 characters are too many",
        ),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(argument: Argument, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        _crawler(x=argument)


@given(st.integers(-(10**18) + 1, 10**18 - 1) | st.floats(allow_nan=False, allow_infinity=False))
def test_what_json_writes_of_a_number_is_a_number(number: float) -> None:
    assert fits(ArgumentType.NUMBER, json.dumps(number))
    assert fits(ArgumentType.INTEGER, json.dumps(number)) == isinstance(number, int)
