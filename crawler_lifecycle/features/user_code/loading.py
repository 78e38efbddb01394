"""Finds and loads the managers in users' modules. Only host processes and previews use it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import os
import sys
import sysconfig
import traceback
from argparse import ONE_OR_MORE, SUPPRESS, ZERO_OR_MORE, Action
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from crawler_lifecycle.features.managers.domain.jobs import options_of
from crawler_lifecycle.managers.base import BaseLoopScript
from crawler_lifecycle.managers.driver import parser_of

from .wire import NAME_MAX, TEXT_MAX

_OURS = "crawler_lifecycle"
#: A class, or one of its options, in the form of ``UserCodeRow``.
Described = dict[str, Any]
#: The maximum number of source files to watch for changes to a class.
FILES_MAX = 500
_DESCRIPTION_MAX = 500
_HELP_MAX = 300
_DEFAULT_MAX = 300
_UNNAMED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class NotUsable(Exception):
    """Raised if a named class cannot be used; the message names the reason and the fix."""


def load(plan: str) -> type[BaseLoopScript]:
    """Import the module of ``module:Class`` and return the class.

    Raises ``NotUsable``, and the module's errors.
    """
    module_name, _, class_name = plan.partition(":")
    if not module_name or not class_name:
        raise NotUsable(
            f"{plan!r} names no class; give module:Class, such as shops.managers:ShopsManager"
        )
    found = getattr(importlib.import_module(module_name), class_name, None)
    if found is None:
        raise NotUsable(
            f"{plan}: the module has no class {class_name!r}; name another class, or define "
            "it again"
        )
    if not _is_plan(found):
        raise NotUsable(
            f"{plan}: the class is not a manager; derive it from one in crawler_lifecycle.managers"
        )
    return cast(type[BaseLoopScript], found)


def find(module_name: str) -> Described:
    """Return the managers and graphs that this module defines (as ``UserCodeRow``), the loaded
    source files, and their fingerprint."""
    there = importlib.import_module(module_name)
    files = watched()
    classes = [
        var for var in vars(there).values() if _is_plan(var) and var.__module__ == there.__name__
    ]
    user_code = [
        _described(f"{module_name}:{fromkey.__name__}", fromkey)
        for fromkey in dict.fromkeys(classes)
    ]
    digest = _digest(files)
    for name, value in list(vars(there).items()):
        plan = f"{module_name}:{name}"
        own = inspect.isfunction(value) and plan == f"{value.__module__}:{value.__qualname__}"
        if own and len(plan) <= NAME_MAX and _builds(value):
            user_code.append(_graph(plan, value, digest))
    return {"user_code": user_code, "files": files, "fingerprint": digest}


def _is_plan(found: object) -> bool:
    return (
        isinstance(found, type)
        and issubclass(found, BaseLoopScript)
        and not inspect.isabstract(found)
    )


def _described(plan: str, cls: type[BaseLoopScript]) -> Described:
    described: Described = {
        "plan": plan,
        "kind": "manager",
        "name": getattr(cls, "name", None) or None,
        "description": _description(cls),
        "fingerprint": fingerprint(cls),
        "options": [],
        "error": None,
    }
    try:
        described["options"] = options(cls)
    except (Exception, SystemExit) as error:
        described["error"] = f"{plan}: its options cannot be read: {type(error).__name__}: {error}"[
            :TEXT_MAX
        ]
    return described


def _description(cls: type[BaseLoopScript]) -> str:
    given = getattr(cls, "description", "")
    own = isinstance(given, str) and bool(given.strip())
    return " ".join(given.split())[:_DESCRIPTION_MAX] if own else _summary(cls.__doc__)


def _summary(doc: str | None) -> str:
    return " ".join((doc or "").strip().partition("\n\n")[0].split())[:_DESCRIPTION_MAX]


def options(cls: type[BaseLoopScript]) -> list[Described]:
    """Return the options of the class's command line."""
    found = []
    for action in parser_of(cls)._actions:
        if action.dest == "help":
            continue
        kind = getattr(action.type, "__name__", None) if action.type is not None else None
        default = None if action.default in (None, SUPPRESS) else action.default
        found.append(
            {
                "name": action.option_strings[-1] if action.option_strings else action.dest,
                "aliases": action.option_strings[:-1],
                "help": (action.help or "")[:_HELP_MAX],
                "default": default
                if isinstance(default, str | int | bool)
                else default and str(default),
                "type": "flag" if action.nargs == 0 else kind or "str",
                "required": bool(action.required),
            }
        )
        if action.choices:
            found[-1]["choices"] = [str(choice) for choice in action.choices]
        if several := _several(action):
            found[-1]["several"] = several
        if (
            action.dest == "program"
        ):  # the flow id must be known before the class parses its options
            lines = {
                name: [str(word) for word in program["command_line"]]
                for name, program in cls.PROGRAMS.items()
            }
            said = {name: options_of(words).get("--flow-id", "{") for name, words in lines.items()}
            found[-1]["flow_ids"] = {name: text for name, text in said.items() if "{" not in text}
    return found


def _several(action: Action) -> str | None:
    """Return how an option takes several values: ``repeated``, ``together`` after one name, or
    ``None`` if the option takes only one value.
    """
    if (isinstance(action.nargs, int) and action.nargs > 1) or action.nargs in (
        ONE_OR_MORE,
        ZERO_OR_MORE,
    ):
        return "together"
    return "repeated" if type(action).__name__ in ("_AppendAction", "_ExtendAction") else None


def _builds(found: Callable[..., Any]) -> bool:
    """Return whether a function builds a whole graph: it is annotated ``-> Workflow``, and does not
    take the context of a graph.
    """
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # it defines its signature itself
        return False
    says = signature.return_annotation
    name = str(says if isinstance(says, str) else getattr(says, "__name__", ""))
    return (
        name.rpartition(".")[2] == "Workflow"
        and not found.__name__.startswith("_")
        and "context" not in signature.parameters
        and all(
            parameter.kind is not parameter.POSITIONAL_ONLY
            for parameter in signature.parameters.values()
        )
    )


def _graph(plan: str, build: Callable[..., Any], digest: str) -> Described:
    """Return the description of a function that builds a graph. The function's parameters are the
    options.
    """
    hints = dict[str, Any]()
    with contextlib.suppress(Exception):  # a name in an annotation may exist only for type checkers
        hints = get_type_hints(build)
    known = inspect.signature(build).parameters.values()
    return {
        "plan": plan,
        "kind": "graph",
        "name": build.__name__,
        "description": _summary(build.__doc__),
        "fingerprint": digest,
        "options": [
            _parameter(parameter, hints.get(parameter.name))
            for parameter in known
            if parameter.kind not in _UNNAMED
        ],
        "error": None,
    }


def _parameter(one: inspect.Parameter, hint: Any) -> Described:
    """Return the description of a parameter. A type without a form field of its own becomes
    ``json``.
    """
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if NoneType in get_args(hint) and len(kinds) == 1:
        hint, kinds = kinds[0], list(get_args(kinds[0]))
    choices = [str(kind) for kind in kinds] if get_origin(hint) is Literal else []
    hint = type(kinds[0]) if choices else hint
    default = None if one.default is one.empty else one.default
    kind = (
        hint.__name__
        if hint in (str, int, float, bool)
        else "str"
        if hint in (None, Any)
        else "json"
    )
    if not isinstance(default, str | int | bool | None):
        default = json.dumps(default, default=str)
    if isinstance(default, str) and len(default) > _DEFAULT_MAX:
        default = None  # the default applies nevertheless if no other value is given
    described: Described = {
        "name": one.name,
        "aliases": [],
        "help": "",
        "default": default,
        "type": kind,
    }
    return (
        described
        | {"required": one.default is one.empty}
        | ({"choices": choices} if choices else {})
    )


def fingerprint(cls: type) -> str:
    """Return a hash of the source files of the class and its bases, excluding files of this
    package.

    Files of this package change with every build, so they must not change the hash.
    """
    return _digest(
        sorted(
            {_source(base) for base in cls.__mro__ if not base.__module__.startswith(f"{_OURS}.")}
            - {""}
        )
    )


def _digest(files: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.path.basename(file).encode())
        with open(file, "rb") as source:
            digest.update(hashlib.sha256(source.read()).digest())
    return digest.hexdigest()[:32]


def _source(cls: type) -> str:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") and os.path.isfile(file) else ""


def watched() -> list[str]:
    """Return the loaded source files of users' modules.

    A change in one of them may change a class.
    """
    found = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    own = [
        file
        for file in found
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_apart())
    ]
    return sorted(own)[:FILES_MAX]


def _apart() -> tuple[str, ...]:
    """Return the folders of code that is not the user's: Python, installed packages, and this
    package.
    """
    ours = os.path.dirname(importlib.import_module(_OURS).__file__ or "")
    return tuple(os.path.join(path, "") for path in {*sysconfig.get_paths().values(), ours})


def reported(error: BaseException) -> str:
    """Return the error as ``told`` does, and print the whole traceback to the output."""
    with contextlib.suppress(Exception):
        traceback.print_exception(error)
    return told(error)


def told(error: BaseException) -> str:
    """Return the error's text with its position in the user's code."""
    kind = type(error).__name__
    text = f"{kind}: {error}" if str(error) else kind
    apart = (*_apart(), "<frozen ")
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(apart)
    ]
    return f"{text} ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else text
