"""Writes a graph as JSON to standard output, or the reason why there is none with exit code 1.

``python -m crawler_lifecycle.features.user_code.graph module:object [word …]``

``crawlctl graph start`` runs this in a separate process with the user's folder on the import path.
The object is a ``Workflow``, or a callable that gets the words and returns a ``Workflow``. Output
of the module goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.graphs.domain.pages import step_to_json
from crawler_lifecycle.graphs.workflow import Workflow

from .loading import told


def document(workflow: Workflow) -> dict[str, Any]:
    """Return the graph in the form of ``POST /v1/graphs`` and ``crawlctl graph start --file``.

    Raises ``InvalidRequest``.
    """
    spec = workflow.spec()
    about = {
        "id": workflow.id,
        "name": workflow.name,
        "tags": workflow.tags,
        "context": dict(spec.context),
    }
    found = {name: value for name, value in about.items() if value}
    return found | {
        "options": asdict(spec.options),
        "steps": [step_to_json(step) for step in spec.steps],
    }


def main(words: Sequence[str]) -> int:
    """Print the graph and return the exit code."""
    module, _, name = words[0].partition(":")
    sys.path.insert(0, os.getcwd())
    with redirect_stdout(sys.stderr):
        try:
            if not name:
                raise InvalidRequest(
                    "it names no function; give module:function, or module:workflow"
                )
            found = attrgetter(name)(importlib.import_module(module))
            workflow = found if isinstance(found, Workflow) else found(*words[1:])
            if not isinstance(workflow, Workflow):
                raise InvalidRequest(
                    f"it returned {type(workflow).__name__}; let it return a Workflow"
                )
            text = json.dumps(document(workflow))
        except Exception as error:
            print(
                str(error) if isinstance(error, InvalidRequest) else told(error),
                file=sys.__stdout__,
            )
            return 1
    print(text)
    return 0


if __name__ == "__main__":
    # A module without a main guard must not parse the words as its options.
    given, sys.argv[1:] = sys.argv[1:], []
    sys.exit(main(given))
