"""Ends: the meanings of the exit codes and finish reasons of a crawler's own program.

There is one table of exit codes (``PRESETS``). A catalogue entry names a preset and adds its own
codes. ``LIFECYCLE_ENDS`` does the same for all entries without a preset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from crawler_lifecycle.runner.reported import FAILED_WORDS

from .bounds import STRICT, Bound, check_number, check_text, refusal

FINISHED = "finished"
DISK_FULL = "diskusage_exceeded"
BANNED = "banned"
FINAL = "final"
RETRY = "retry"
#: Outcomes of exit codes that mean success.
SUCCESSES = (FINISHED, "size_limit", "time_limit")

#: Preset -> exit code -> meaning: the outcome of the task, a failure that is never retried
#: (``FINAL``), or a failure that is always retried (``RETRY``). 0 is a success, and every code
#: without a meaning is a failure.
PRESETS: Mapping[str, Mapping[int, str]] = {
    "plain": {},
    # These are not the codes of Scrapy's own process, but our runner's verdicts
    # (``runner/contract.py``).
    "scrapy": {3: DISK_FULL, 4: FINAL},
    "browsertrix": {
        3: DISK_FULL,
        4: FINAL,
        14: "size_limit",
        15: "time_limit",
        17: FINAL,
        18: BANNED,
    },
    # Wrong arguments for Python and Node.
    "crawlee": {2: FINAL, 9: FINAL},
    # Wrong arguments, no network, or a wrong password.
    "wget": {2: FINAL, 4: RETRY, 6: FINAL},
    # Wrong arguments or addresses; problems with names, connections, partial files, timeouts and
    # TLS.
    "curl": dict.fromkeys((1, 2, 3, 4), FINAL)
    | dict.fromkeys((5, 6, 7, 18, 28, 35, 52, 55, 56), RETRY),
}
#: Exit codes by which shells, and our runner, report that a program cannot be executed or does not
#: exist.
_NOT_EXECUTED = {126: FINAL, 127: FINAL}
#: One more word by which Scrapy reports a failure.
_SCRAPY_WORDS = ("closespider_errorcount",)
#: The word that stands for all other words.
ANY = "*"
#: Key in ``ends`` -> the meaning of the codes under this key.
_KEYS = {"success": FINISHED, "final": FINAL, "retry": RETRY}
#: The maximum number of codes and words for one key, and the maximum length of a word.
_MOST = 50
_WORD_MAX = 200


@dataclass(frozen=True, slots=True)
class Reading:
    """The meanings of a crawler's exit codes and finish reasons."""

    codes: Mapping[int, str]
    """Exit code -> its meaning, as in ``PRESETS``."""
    failed_words: Sequence[str]

    def fails(self, word: str | None) -> bool:
        """Return whether a crawler's finish reason means a failure."""
        return word in self.failed_words or (
            ANY in self.failed_words and word not in (None, FINISHED)
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """The keys of ``ends`` in one source. Raises ``InvalidRequest``."""

    __pydantic_config__: ClassVar = STRICT

    like: str | None = None
    """The name of the preset, which is a key of ``PRESETS``."""
    success: list[int] | None = None
    """Exit codes that mean success, in addition to 0."""
    final: list[int] | None = None
    """Exit codes of failures that are never retried."""
    retry: list[int] | None = None
    """Exit codes of failures that are retried, even if ``retries.on`` does not contain ``failed``.
    """
    failed_words: list[str] | None = None
    """Last words that mean a failure, with any exit code. ``*`` stands for all words except
    ``finished``.
    """

    def __post_init__(self) -> None:
        if self.like not in (None, *PRESETS):
            raise refusal("ends.like", self.like, f"give one of {', '.join(PRESETS)}")
        for name in (*_KEYS, "failed_words"):
            if len(given := getattr(self, name) or ()) > _MOST:
                raise refusal(f"ends.{name}", len(given), f"give at most {_MOST}")
        for name, meaning in _KEYS.items():
            for code in getattr(self, name) or ():
                check_number(f"ends.{name}", code, Bound(int(name != "success"), 255, whole=True))
                if self.codes[code] != meaning:
                    raise refusal(
                        f"ends.{name}",
                        code,
                        "it is also in another list; remove it from one of them",
                    )
        for word in self.failed_words or ():
            check_text("ends.failed_words", word, _WORD_MAX, needed=True)

    def check_scrapy(self) -> None:
        """Raise ``InvalidRequest`` for keys that have no effect for a crawler of kind
        ``scrapy``.
        """
        if self.like not in (None, "scrapy") or self.codes:
            raise refusal(
                "ends",
                self.like or list(self.codes),
                "leave out all but failed_words for kind 'scrapy': the runner reads how Scrapy's "
                "process ended",
            )

    @property
    def codes(self) -> dict[int, str]:
        """Return the exit codes in this source, with their meanings."""
        return {
            code: meaning for name, meaning in _KEYS.items() for code in getattr(self, name) or ()
        }


NO_ENDS = Ends()


def reading(entry: Ends, installation: Ends = NO_ENDS, *, scrapy: bool = False) -> Reading:
    """Return the meanings for a crawler. The codes in the entry override the installation's codes,
    which override the codes in the preset. If an entry names a preset, the installation's codes are
    ignored. A Scrapy crawler has no codes of its own.
    """
    inherited = {} if scrapy or entry.like else installation.codes
    preset = "scrapy" if scrapy else entry.like or installation.like or "plain"
    words = (
        entry.failed_words
        or installation.failed_words
        or (_SCRAPY_WORDS if preset == "scrapy" else ())
    )
    return Reading(
        {**_NOT_EXECUTED, **PRESETS[preset], **inherited, **entry.codes}, (*FAILED_WORDS, *words)
    )


#: The meanings if there is no entry: for our runner, and for any other program.
RUNNER = reading(NO_ENDS, scrapy=True)
PLAIN = reading(NO_ENDS)
