"""The environment variables to which a reference ``env:NAME`` may refer. The values of all other
environment variables are not passed on.
"""

from __future__ import annotations

from .errors import InvalidRequest

REFERENCE = "env:"
#: The prefixes of our own settings, whose values are never passed on, even if a setting allows such
#: a prefix.
OURS = ("LIFECYCLE_", "TEMPORAL_")
#: The default prefixes of variables for crawlers and for webhooks.
OF_CRAWLERS = "CRAWL_"
OF_WEBHOOKS = "CRAWL_HOOK"
#: Variables of the process contract, which tasks and user code receive (docs/crawlers.md). A
#: reference may not name these variables: if a task started this process, they contain that task's
#: values.
CONTRACT = frozenset(
    f"CRAWL_{name}"
    for name in (
        "RUN_ID",
        "RUN_UID",
        "TASK_ID",
        "TASK_INDEX",
        "TASK_UID",
        "ATTEMPT",
        "CRAWLER",
        "ARGS",
        "SETTINGS",
        "RESUME",
        "FILES_DIR",
        "STATE_DIR",
        "STATS_FILE",
        "SUMMARY_FILE",
        "LOG_FILE",
        "JOB_DIR",
        "MEMORY_LIMIT",
        "DEADLINE",
        "GATEWAY_URL",
        "TOKEN",
        "UPLOAD_URL",
        "UPLOAD_TOKEN",
        "LEASES_URL",
        "LEASES_TOKEN",
        "CODE_DIGEST",
        "CODE_URL",
        "CODE_TOKEN",
        "CODE_DIR",
        "CODE_CACHE",
        "STOP_SIGNAL",
        "STOP_GRACE_S",
        "END_GRACE_S",
        "RUN_TIMEOUT_S",
        "PLANS_PROCESS",
        "SLOT_FD",
        "ITEMS",
        "FIELDS",
        "DUE_AT",
        "REQUEST_ID",
    )
)


def check_variable(
    key: str, reference: str, prefix: str, setting: str, but: str | None = None
) -> None:
    """Raise ``InvalidRequest`` for a reference to a variable that may not be passed on.

    A variable may be passed on if its name begins with ``prefix`` and does not begin with ``but``.
    ``setting`` is the name of the setting for the prefix. The error message contains this name.
    """
    name = reference.removeprefix(REFERENCE)
    if name == reference:
        return
    if name in CONTRACT or name.upper().startswith(OURS):
        why = "is a variable of this service or of the process contract"
    elif not name.startswith(prefix):
        why = f"does not begin with {prefix}, so it may not be named here"
    elif but is not None and name.startswith(but):
        why = f"begins with {but}, the prefix of webhook secrets"
    else:
        return
    fix = f"put the secret into a variable such as {prefix}SHOP and name that variable"
    raise InvalidRequest(
        f"{key}: {reference!r:.80} {why}; {fix} ({setting} sets how such names begin)"
    )
