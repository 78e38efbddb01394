"""Arguments that a crawler declares: their types, and the check of a value.

Values travel as texts, because a process receives nothing else. A declared type says which texts are meant.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from crawler_lifecycle.domain.errors import InvalidRequest

#: An argument as JSON may write it.
Scalar = str | int | float | bool

#: Characters of a description, choices of one argument.
DESCRIPTION_MAX, CHOICES_MAX = 1000, 1000


class ArgumentType(StrEnum):
    """The type of text that an argument takes."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"

    @property
    def cure(self) -> str:
        """Return what to give."""
        return _CURES[self]


_CURES = {
    ArgumentType.STRING: "give a text",
    ArgumentType.INTEGER: "give a whole number of at most 18 digits",
    ArgumentType.NUMBER: "give a number, such as 2, 0.5 or 1e-3",
    ArgumentType.BOOLEAN: "give true or false",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument that a crawler takes."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    default: str | None = None
    required: bool = False
    type: ArgumentType = ArgumentType.STRING
    description: str | None = None
    choices: list[str] = field(default_factory=list)
    """The only allowed values; empty: every value of its type."""


def as_text(value: Scalar) -> str:
    """The text that a process receives for a value as JSON writes it."""
    return value if isinstance(value, str) else json.dumps(value)


def check_texts(declared: Mapping[str, Argument], args: Mapping[str, Scalar], where: str = "") -> None:
    """Refuse a number or ``true`` for an argument that takes texts: its original spelling is lost.

    ``where`` goes before the name. Raises ``InvalidRequest``.
    """
    for name, value in args.items():
        argument = declared.get(name)
        if argument is not None and argument.type is ArgumentType.STRING and not isinstance(value, str):
            raise InvalidRequest(
                f"{where}args.{name}: {as_text(value)[:100]} is no text; put it in quotes, or have the catalogue "
                "declare its type"
            )


def fits(kind: ArgumentType, text: str) -> bool:
    """Return whether the text is of this type."""
    if kind is ArgumentType.INTEGER:
        return re.fullmatch(r"[+-]?[0-9]{1,18}", text) is not None
    if kind is ArgumentType.NUMBER:
        plain = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text[:101]) is not None
        return plain and len(text) <= 100 and math.isfinite(float(text))
    return kind is ArgumentType.STRING or text in ("true", "false")


def check_value(name: str, argument: Argument, text: str) -> None:
    """Refuse a value that the declaration does not allow. Raises ``InvalidRequest``."""
    if not fits(argument.type, text):
        raise InvalidRequest(f"{name}: {_shown(text)} is not allowed; {argument.type.cure}")
    if argument.choices and text not in argument.choices:
        known = ", ".join(argument.choices)
        raise InvalidRequest(f"{name}: {_shown(text)} is not allowed; give one of {known[:500]}")


def check_declared(name: str, argument: Argument) -> None:
    """Refuse a declaration that contradicts itself. Raises ``InvalidRequest``."""
    if argument.description is not None and len(argument.description) > DESCRIPTION_MAX:
        size = len(argument.description)
        raise InvalidRequest(f"{name}.description: {size} characters are too many; give at most {DESCRIPTION_MAX}")
    if len(argument.choices) > CHOICES_MAX:
        raise InvalidRequest(f"{name}.choices: {len(argument.choices)} are too many; give at most {CHOICES_MAX}")
    for n, choice in enumerate(argument.choices):
        if not fits(argument.type, choice):
            raise InvalidRequest(f"{name}.choices[{n}]: {_shown(choice)} is not allowed; {argument.type.cure}")
    if argument.default is not None:
        check_value(f"{name}.default", argument, argument.default)


def _shown(text: str) -> str:
    return repr(text[:100])
