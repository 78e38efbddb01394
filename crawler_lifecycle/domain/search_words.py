"""The words of a search: the same on every database, because we split the text ourselves.

A word has only ASCII letters, digits and underscores, so every database sorts words alike.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

#: The maximum number of characters of a word.
WORD_MAX = 60
#: The maximum number of words in one document, and of characters that are read from one string.
WORDS_MAX = 200
TEXT_MAX = 4_000

_ASCII_WORDS = re.compile("[a-z0-9]+")


def search_words(text: str) -> list[str]:
    """Return the words of a text in order, in lower case and without accents.

    A letter outside ASCII becomes its code in hexadecimal digits between underscores. The words of
    the beginning of a text are the beginning of its words, so that part of a word finds it.
    """
    text = text[:TEXT_MAX]
    if text.isascii():
        return [word[:WORD_MAX] for word in _ASCII_WORDS.findall(text.lower())]
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    # A mark, such as an accent, belongs to the letter before it and is left out.
    marks = (unicodedata.category(letter).startswith("M") for letter in folded)
    plain = "".join(
        letter if letter.isalnum() else " "
        for letter, is_mark in zip(folded, marks, strict=True)
        if not is_mark
    )
    return [_ascii(word) for word in plain.split()]


def document_words(texts: Iterable[str]) -> list[str]:
    """Return the first ``WORDS_MAX`` distinct words of these strings."""
    found: dict[str, None] = {}
    for text in texts:
        found |= dict.fromkeys(search_words(text))
        if len(found) >= WORDS_MAX:
            break
    return list(found)[:WORDS_MAX]


def _ascii(word: str) -> str:
    """Return the word in ASCII, cut between two letters."""
    written = ""
    for letter in word:
        code = letter if letter.isascii() else f"_{ord(letter):x}_"
        if len(written) + len(code) > WORD_MAX:
            break
        written += code
    return written
