"""Form fields for the options of a class, or for the parameters of a function that builds a
graph.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from crawler_lifecycle.domain.unknown import suggest
from crawler_lifecycle.gateway.ui.parts.forms import lines, whole
from crawler_lifecycle.web.problems import ERRORS_MAX, FieldError, Problem, check_json

from ..ports import UserCodeRow

_BOOLEANS = {"true": True, "false": False}
#: The fix for an invalid value of each kind, with an example.
_FIXES = {
    "int": "give a whole number, such as 10",
    "float": "give a number, such as 0.5",
    "bool": "give true or false",
    "json": 'give a value as JSON, such as {"page": "1"} or ["a", "b"]',
    "object": 'give a JSON object, such as {"page": "1"}',
}


@dataclass(frozen=True, slots=True)
class Option:
    """One field. The description comes from another program, so nothing in the description is
    trusted.
    """

    name: str
    kind: str
    """``flag``, ``str``, or a kind of ``_FIXES``."""
    help: str
    default: str | None
    required: bool
    choices: Sequence[str]
    several: str | None
    """``repeated`` or ``together`` if the field accepts several values, one per line."""

    @property
    def field(self) -> str:
        return f"opt-{self.name}"

    def read(self, text: str) -> Any:
        """Return the value of a field. Raises ``ValueError`` with a sentence about it."""
        if self.several:
            return [self._one(line) for line in lines(text)]
        return True if self.kind == "flag" else self._one(text)

    def _one(self, text: str) -> Any:
        if self.choices and text not in self.choices:
            raise ValueError(f"{text[:100]!r} is not allowed; {suggest(text, self.choices)}")
        try:
            found = self._converted(text)
        except (ValueError, RecursionError, Problem):
            found = None
        if found is None:
            raise ValueError(f"{text[:100]!r} is not allowed; {_FIXES[self.kind]}")
        return found

    def _converted(self, text: str) -> Any:
        """Return the value. ``None`` or any error of a parser means that the text is invalid."""
        match self.kind:
            case "int":
                return number if isinstance(number := whole(text), int) else None
            case "float":
                return amount if math.isfinite(amount := float(text)) else None
            case "bool":
                return _BOOLEANS.get(text)
            case "json" | "object":
                return (
                    value
                    if isinstance(value := check_json(text.encode()), dict) or self.kind == "json"
                    else None
                )
        return text


def options_of(plan: UserCodeRow) -> list[Option]:
    """Return the fields for a class."""
    return [_option(option) for option in plan.options if option.get("name")]


def _option(given: Mapping[str, Any]) -> Option:
    names = [str(given["name"]), *map(str, given.get("aliases") or ())]
    name = next((name for name in names if name.startswith("--")), names[0])
    default = given.get("default")
    kind = str(given.get("type"))
    if isinstance(default, str) and default.startswith("{"):
        kind = "object"  # an option whose default is a JSON object takes a JSON object
    elif kind not in (*_FIXES, "flag"):
        number = (
            type(default).__name__
            if isinstance(default, int | float) and not isinstance(default, bool)
            else ""
        )
        # A function of the class parses the value, so the default shows its type.
        kind = number or "str"
    shown = (
        None
        if default in (None, "", [])
        else json.dumps(default)
        if isinstance(default, bool)
        else str(default)
    )
    text = str(given.get("help") or "").replace("%(default)s", shown or "none").replace("%%", "%")
    choices = [str(choice) for choice in given.get("choices") or ()]
    several = given.get("several")
    return Option(
        name, kind, text, shown, given.get("required") is True, choices, several and str(several)
    )


def values_of(options: Sequence[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the options that the form has, by their names.

    Raises ``Problem`` 422, which names each wrong field."""
    values = dict[str, Any]()
    errors = list[FieldError]()
    for option in options:
        text = given.get(option.field)
        if text is None and not option.required:
            continue
        try:
            if text is None:
                raise ValueError("missing; give it")
            values[option.name] = option.read(text)
        except ValueError as error:
            errors.append(FieldError(field=option.field, message=str(error)))
    if errors:
        detail = "; ".join(
            f"{error.field.removeprefix('opt-')}: {error.message}" for error in errors
        )
        raise Problem(422, "invalid_request", detail, errors=errors[:ERRORS_MAX])
    return values


def command_line(options: Sequence[Option], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the words of a command line, each with the field that it comes from.

    Raises ``Problem`` 422.
    """
    found = list[tuple[str, str]]()
    # Values without a name come first.
    for option in sorted(options, key=lambda option: option.name.startswith("-")):
        if option.name in values:
            found += [(word, option.field) for word in _words(option, values[option.name])]
    return found


def _words(one: Option, value: Any) -> list[str]:
    if one.kind == "flag":
        return [one.name]
    named = one.name.startswith("-")
    texts = [_text(each) for each in (value if one.several else [value])]
    if named and one.several != "together":
        return [f"{one.name}{'=' if one.name.startswith('--') else ''}{text}" for text in texts]
    if any(text.startswith("-") for text in texts):
        message = "a value here cannot begin with -; use the API"
        raise Problem(
            422, "invalid_request", message, errors=[FieldError(field=one.field, message=message)]
        )
    return [one.name, *texts] if named else texts


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
