"""The words of a search."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.search_words import (
    TEXT_MAX,
    WORD_MAX,
    WORDS_MAX,
    document_words,
    search_words,
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Shop-437", ["shop", "437"]),
        ("Zürich ZÜRICH", ["zurich", "zurich"]),
        ("Straße ﬁt İx", ["strasse", "fit", "ix"]),
        ("日本", ["_65e5__672c_"]),
        ("a_b", ["a", "b"]),
        ("", []),
        ("%\x00-", []),
    ],
)
def test_words_of_a_text(text: str, words: list[str]) -> None:
    assert search_words(text) == words


@given(st.text(max_size=200))
def test_words_are_plain_and_short(text: str) -> None:
    for word in search_words(text):
        assert re.fullmatch(f"[a-z0-9_]{{1,{WORD_MAX}}}", word)


@given(st.text(st.characters(categories=("L", "Nd")), min_size=1, max_size=80), st.data())
def test_the_beginning_of_a_word_is_the_beginning_of_its_word(
    text: str, data: st.DataObject
) -> None:
    part = text[: data.draw(st.integers(1, len(text)))]
    for word, begun in zip(search_words(text), search_words(part), strict=False):
        assert word.startswith(begun)


@given(st.text(max_size=100), st.text(max_size=100))
def test_case_and_surroundings_change_nothing(text: str, other: str) -> None:
    words = search_words(text)
    assert search_words(f"{other} {text}")[len(search_words(other)) :] == words
    assert set(words) <= set(document_words([text, other]))


def test_a_document_is_bounded() -> None:
    words = document_words(f"{n} {n}" for n in range(10_000))
    assert words == [f"{n}" for n in range(WORDS_MAX)]
    assert search_words("a " * 10 * TEXT_MAX) == ["a"] * (TEXT_MAX // 2)
