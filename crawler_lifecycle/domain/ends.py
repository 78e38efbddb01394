"""Ends: what the exit codes and the last words of a crawler's own program mean.

There is one table of exit codes (``PRESETS``). An entry of the catalogue names a preset and adds
codes of its own, and ``LIFECYCLE_ENDS`` does so for all entries without a preset.
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
#: Outcomes of exit codes that are successes.
SUCCESSES = (FINISHED, "size_limit", "time_limit")

#: Preset -> exit code -> meaning: the outcome of the task, a failure that is never retried
#: (``FINAL``), or one that is always worth a retry (``RETRY``). 0 is a success, and every code
#: without a meaning is a failure.
PRESETS: Mapping[str, Mapping[int, str]] = {
    "plain": {},
    # Not the codes of Scrapy's own process, but the verdicts of our runner
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
    # Wrong arguments of Python and of Node.
    "crawlee": {2: FINAL, 9: FINAL},
    # Wrong arguments, no network, wrong password.
    "wget": {2: FINAL, 4: RETRY, 6: FINAL},
    # Wrong arguments or addresses; names, connections, partial files, timeouts and TLS.
    "curl": dict.fromkeys((1, 2, 3, 4), FINAL)
    | dict.fromkeys((5, 6, 7, 18, 28, 35, 52, 55, 56), RETRY),
}
#: Codes with which shells, and our runner, report that a program cannot be executed or is not
#: there.
_NOT_EXECUTED = {126: FINAL, 127: FINAL}
#: Another word of a failure, of Scrapy.
_SCRAPY_WORDS = ("closespider_errorcount",)
#: The word that stands for all others.
ANY = "*"
#: Key of ``ends`` -> the meaning of its codes.
_KEYS = {"success": FINISHED, "final": FINAL, "retry": RETRY}
#: The most codes and words of one key, and the most characters of a word.
_MOST = 50
_WORD_MAX = 200


@dataclass(frozen=True, slots=True)
class Reading:
    """The meanings of a crawler's exit codes and last words."""

    codes: Mapping[int, str]
    """Exit code -> its meaning in ``PRESETS``."""
    failed_words: Sequence[str]

    def fails(self, word: str | None) -> bool:
        """Return whether this last word of a crawler means a failure."""
        return word in self.failed_words or (
            ANY in self.failed_words and word not in (None, FINISHED)
        )


@dataclass(frozen=True, slots=True)
class Ends:
    """The keys of ``ends`` that one source gives. Raises ``InvalidRequest``."""

    __pydantic_config__: ClassVar = STRICT

    like: str | None = None
    """The preset: a name of ``PRESETS``."""
    success: list[int] | None = None
    """Exit codes of successes, besides 0."""
    final: list[int] | None = None
    """Exit codes of failures that are never retried."""
    retry: list[int] | None = None
    """Exit codes of failures that are retried, also where ``retries.on`` does not name
    ``failed``.
    """
    failed_words: list[str] | None = None
    """Last words of failures, whatever the exit code. ``*`` stands for all but ``finished``."""

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
                        f"ends.{name}", code, "it is in another list too; leave it out of one"
                    )
        for word in self.failed_words or ():
            check_text("ends.failed_words", word, _WORD_MAX, needed=True)

    def check_scrapy(self) -> None:
        """Raise ``InvalidRequest`` for keys that mean nothing for a crawler of kind ``scrapy``."""
        if self.like not in (None, "scrapy") or self.codes:
            raise refusal(
                "ends",
                self.like or list(self.codes),
                "leave out all but failed_words for kind 'scrapy': the runner reads how Scrapy's "
                "process ended",
            )

    @property
    def codes(self) -> dict[int, str]:
        """The exit codes of this source with their meanings."""
        return {
            code: meaning for name, meaning in _KEYS.items() for code in getattr(self, name) or ()
        }


NO_ENDS = Ends()


def reading(entry: Ends, installation: Ends = NO_ENDS, *, scrapy: bool = False) -> Reading:
    """Return the meanings for a crawler.

    The entry's codes come before those of the installation, and these before those of the preset.
    An entry that names a preset takes no codes of the installation, and Scrapy has no codes of its
    own.
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


#: How ends are read without an entry: those of our runner, and those of any other program.
RUNNER = reading(NO_ENDS, scrapy=True)
PLAIN = reading(NO_ENDS)
