"""Declarations of a crawler's arguments: their types, and the checks of their values.

Values are strings, because a process can receive only strings. The declared type defines which
strings are allowed.
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

#: The JSON types that the value of an argument may have.
Scalar = str | int | float | bool

#: The maximum length of a description, and the maximum number of choices for an argument.
DESCRIPTION_MAX = 1000
CHOICES_MAX = 1000


class ArgumentType(StrEnum):
    """The type of an argument's value."""

    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"


#: The advice that follows a wrong value, by type.
_FIXES = {
    ArgumentType.STRING: "give a string",
    ArgumentType.INTEGER: "give a whole number of at most 18 digits",
    ArgumentType.NUMBER: "give a number, such as 2, 0.5 or 1e-3",
    ArgumentType.BOOLEAN: "give true or false",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """The declaration of one argument of a crawler."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    default: str | None = None
    required: bool = False
    type: ArgumentType = ArgumentType.STRING
    description: str | None = None
    choices: list[str] = field(default_factory=list)
    """The only allowed values. If empty, every value of the type is allowed."""


def as_text(value: Scalar) -> str:
    """Return a JSON value as the string that a process receives."""
    return value if isinstance(value, str) else json.dumps(value)


def check_texts(
    declared: Mapping[str, Argument], args: Mapping[str, Scalar], where: str = ""
) -> None:
    """Raise ``InvalidRequest`` if the value of a string argument is a number or a boolean. JSON
    does not preserve the caller's spelling of a number: ``1.0`` may have been ``1.00``. ``where``
    precedes the name in the message.
    """
    for name, value in args.items():
        argument = declared.get(name)
        if (
            argument is not None
            and argument.type is ArgumentType.STRING
            and not isinstance(value, str)
        ):
            raise InvalidRequest(
                f"{where}args.{name}: {as_text(value)[:100]} is not a string; put it in quotes, "
                "or have the catalogue declare its type"
            )


def fits(kind: ArgumentType, text: str) -> bool:
    """Return whether the text is a valid value for this type."""
    if kind is ArgumentType.INTEGER:
        return re.fullmatch(r"[+-]?[0-9]{1,18}", text) is not None
    if kind is ArgumentType.NUMBER:
        plain = (
            re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text[:101])
            is not None
        )
        return plain and len(text) <= 100 and math.isfinite(float(text))
    return kind is ArgumentType.STRING or text in ("true", "false")


def check_value(name: str, argument: Argument, text: str) -> None:
    """Raise ``InvalidRequest`` for a value that the declaration does not allow."""
    if not fits(argument.type, text):
        raise InvalidRequest(f"{name}: {_shown(text)} is not allowed; {_FIXES[argument.type]}")
    if argument.choices and text not in argument.choices:
        known = ", ".join(argument.choices)
        raise InvalidRequest(f"{name}: {_shown(text)} is not allowed; give one of {known[:500]}")


def check_declared(name: str, argument: Argument) -> None:
    """Raise ``InvalidRequest`` for a declaration that is too long or contradicts itself."""
    if argument.description is not None and len(argument.description) > DESCRIPTION_MAX:
        size = len(argument.description)
        raise InvalidRequest(
            f"{name}.description: {size} characters are too many; give at most {DESCRIPTION_MAX}"
        )
    if len(argument.choices) > CHOICES_MAX:
        raise InvalidRequest(
            f"{name}.choices: {len(argument.choices)} are too many; give at most {CHOICES_MAX}"
        )
    for n, choice in enumerate(argument.choices):
        if not fits(argument.type, choice):
            raise InvalidRequest(
                f"{name}.choices[{n}]: {_shown(choice)} is not allowed; {_FIXES[argument.type]}"
            )
    if argument.default is not None:
        check_value(f"{name}.default", argument, argument.default)


def _shown(text: str) -> str:
    return repr(text[:100])
