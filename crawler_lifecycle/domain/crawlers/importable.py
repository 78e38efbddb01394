"""Names by which another process finds a class or a function: ``module:qualname``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest


def check_program(what: str) -> None:
    """Raise ``InvalidRequest`` if a module with user code starts a manager or graph while one of
    our processes is importing the module. Otherwise every process that imports the module would
    start another manager or graph.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name.startswith("crawler_lifecycle."):
        fix = 'put it below a line `if __name__ == "__main__":` at the end of the file'
        raise InvalidRequest(
            f"{what} while its module is imported, and every worker imports it; {fix}"
        )


def importable_name(thing: type | Callable[..., Any]) -> str:
    """Return the name ``module:qualname`` of a class or function.

    The object may be defined in the program's main file.

    Raises ``InvalidRequest`` for objects without such a name: lambdas, functions within functions,
    instances and their methods.
    """
    name = getattr(thing, "__qualname__", None)
    module = getattr(thing, "__module__", None)
    if not isinstance(name, str) or not isinstance(module, str):
        raise InvalidRequest(
            f"{thing!r:.100} cannot be imported by name; give a function or a class of a module"
        )
    if not isinstance(getattr(thing, "__self__", None), type | ModuleType | None):
        raise InvalidRequest(
            f"{module}:{name} is a method of an object that exists only in this process; "
            "give a function"
        )
    if "<" in name:
        raise InvalidRequest(
            f"{module}:{name} cannot be imported by another process; define it in the module "
            "itself with def, not as a "
            "lambda and not within a function"
        )
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        file = getattr(main, "__file__", None)
        module = spec.name if spec else Path(file).stem if file else module
    return f"{module}:{name}"
