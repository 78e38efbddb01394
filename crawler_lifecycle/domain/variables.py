"""Variables of our processes that a reference ``env:NAME`` may name: nothing else of their environment is given out."""

from __future__ import annotations

from crawler_lifecycle.domain.errors import InvalidRequest

REFERENCE = "env:"
#: The prefix of our own settings, which are never given out, whatever the prefix is set to.
OURS = ("LIFECYCLE_", "TEMPORAL_")
#: Prefixes of the variables that crawlers and webhooks may use, by default.
OF_CRAWLERS, OF_WEBHOOKS = "CRAWL_", "CRAWL_HOOK"
#: What the process contract gives to processes of tasks and of users' code (docs/crawlers.md). Of one of these the
#: value in our own environment is that of another task, if somebody started us from within one.
CONTRACT = frozenset(
    f"CRAWL_{name}"
    for name in (
        *("RUN_ID", "RUN_UID", "TASK_ID", "TASK_INDEX", "TASK_UID", "ATTEMPT", "CRAWLER", "ARGS", "SETTINGS", "RESUME"),
        *("FILES_DIR", "STATE_DIR", "STATS_FILE", "SUMMARY_FILE", "LOG_FILE", "JOB_DIR", "MEMORY_LIMIT", "DEADLINE"),
        *("GATEWAY_URL", "TOKEN", "UPLOAD_URL", "UPLOAD_TOKEN", "STOP_SIGNAL", "STOP_GRACE_S", "END_GRACE_S"),
        *("RUN_TIMEOUT_S", "PLANS_PROCESS", "SLOT_FD", "ITEMS", "FIELDS"),
    )
)


def check_variable(key: str, reference: str, prefix: str, setting: str, but: str | None = None) -> None:
    """Refuse a reference to a variable that is not made to be given out: one without ``prefix``, as ``setting`` says
    it, or with the prefix ``but``, which is for others. Raises ``InvalidRequest``."""
    name = reference.removeprefix(REFERENCE)
    if name == reference:
        return
    if name in CONTRACT or name.upper().startswith(OURS):
        why = "is for processes of this service, or what a task is told about itself"
    elif not name.startswith(prefix):
        why = f"does not begin with {prefix}, as every variable does that may be named here"
    elif but is not None and name.startswith(but):
        why = f"begins with {but}, as secrets of webhooks do"
    else:
        return
    cure = f"give the secret to a variable such as {prefix}SHOP and name that"
    raise InvalidRequest(f"{key}: {reference!r:.80} {why}; {cure} ({setting} sets how such names begin)")
