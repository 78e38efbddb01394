"""The whole API against a fuzzer that knows its OpenAPI document, in one process."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from crawler_lifecycle.gateway.api.openapi import ITEM_SCHEMA

#: Every check of schemathesis except two. An unknown crawler, a missing run and a token of no list
#: all fit their schemas, so refusing data that fits (``positive_data_acceptance``) is right here;
#: and nobody has objects of their own (``object_level_authorization``).
CHECKS = (
    *(
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ),
    *(
        "response_headers_conformance",
        "negative_data_rejection",
        "missing_required_header",
        "unsupported_method",
    ),
    *("ignored_auth", "allow_header_conformance", "use_after_free", "ensure_resource_availability"),
)

#: How data that does not fit may be refused: too many items may also be too many bytes, before
#: anybody counts them.
REFUSED = ("400", "401", "404", "405", "406", "409", "413", "414", "415", "422", "503")
#: The maximum number of characters of a request that is shown.
SHOWN_MAX = 2000
PHASES = ("examples", "coverage", "fuzzing", "stateful")


@dataclass
class Findings:
    """The results of a run of the fuzzer."""

    failures: list[str] = field(default_factory=list)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    stopped: str | None = None


def fuzz(
    app: Any, document: Any, token: str, *phases: str, max_examples: int | None = None
) -> Findings:
    """Send requests of every kind to every operation.

    Return what was wrong with the responses. The phases ``examples`` and ``coverage`` are finite;
    ``fuzzing`` and ``stateful`` send ``max_examples`` to each operation. This is not limited by
    time, so that a fast machine sends the same as a slow one.
    """
    config = SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "continue-on-failure": True,
            "headers": {"Authorization": f"Bearer {token}"},
            "checks": {
                "enabled": False,
                **{name: {"enabled": True} for name in CHECKS},
                "negative_data_rejection": {"enabled": True, "expected-statuses": REFUSED},
            },
            "phases": {name: {"enabled": name in phases} for name in PHASES},
            "generation": {
                "deterministic": True,
                "database": "none",
                **({} if max_examples is None else {"max-examples": max_examples}),
            },
            "request-timeout": 120,
            "suppress-health-check": ["too_slow"],
            "max-stream-events": 1,
        }
    )
    schema = schemathesis.openapi.from_dict(_read_as_3_2(document), config=config)
    schema.app = app
    found = Findings()
    for event in from_schema(schema).execute():
        _note(event, found)
    return found


def _read_as_3_2(document: Any) -> Any:
    """Return the document with the schema of stream events where the fuzzer looks for it."""
    found = copy.deepcopy(document)
    for item in found["paths"].values():
        for operation in item.values():
            for content in operation["responses"].get("200", {}).get("content", {}).values():
                if ITEM_SCHEMA in content:
                    del content["schema"]
                    content["itemSchema"] = content.pop(ITEM_SCHEMA)
    return found


def _note(event: Any, found: Findings) -> None:
    if isinstance(event, events.ScenarioFinished):
        for interaction in event.recorder.interactions.values():
            if interaction.response is not None:
                found.answers[event.recorder.label, interaction.response.status_code] += 1
        for checks in event.recorder.checks.values():
            for check in checks:
                if check.failure_info is not None:
                    failure = check.failure_info.failure
                    sample = check.failure_info.code_sample
                    found.failures.append(
                        f"{event.recorder.label}: {failure.title}: {failure.message}\n{sample[:SHOWN_MAX]}"
                    )
    elif isinstance(event, events.NonFatalError | events.FatalError):
        found.failures.append(
            str(getattr(event, "info", None) or getattr(event, "exception", event))
        )
    elif isinstance(event, events.EngineFinished):
        found.stopped = str(event.stop_reason)
