"""Valid but absurd bodies and forms: counts, depths and sizes."""

from __future__ import annotations

from crawler_lifecycle.gateway.access.operations import BODY_MAX, BODY_OF_TASKS_MAX
from crawler_lifecycle.web.problems import NAMES_MAX


def filled(before: str, part: str, after: str, size: int = BODY_OF_TASKS_MAX) -> bytes:
    """Return a body with as many equal parts as fit."""
    count = (size - len(before) - len(after)) // (len(part) + 1)
    return (before + ",".join([part] * count) + after).encode()


def named(before: str, value: str, after: str, count: int) -> bytes:
    """Return a body with this many different names."""
    return (before + ",".join(f'"k{n}":{value}' for n in range(count)) + after).encode()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


#: By a name: the method, the path and the body.
ATTACKS: dict[str, tuple[str, str, bytes]] = {
    "a million steps": ("POST", "/v1/graphs", filled('{"steps":[', "1", "]}")),
    "steps up to the bound": ("POST", "/v1/graphs", filled('{"steps":[', "1", "]}", 299_000)),
    "150,000 unknown fields": ("POST", "/v1/runs", named('{"crawler":"plain",', "1", "}", 150_000)),
    "unknown fields up to the bound": (
        "POST",
        "/v1/runs",
        named('{"crawler":"plain",', "1", "}", NAMES_MAX - 1),
    ),
    "130,000 arguments": (
        "POST",
        "/v1/runs",
        named('{"crawler":"plain","args":{', '"1"', "}}", 130_000),
    ),
    "wrong arguments up to the bound": (
        "POST",
        "/v1/runs",
        named('{"crawler":"plain","args":{', "[]", "}}", NAMES_MAX),
    ),
    "80,000 tasks": (
        "POST",
        "/v1/runs",
        filled('{"crawler":"plain","tasks":[', "{}", "]}", 240_000),
    ),
    "70,000 tasks": (
        "POST",
        "/v1/runs",
        filled('{"crawler":"plain","tasks":[', "{}", "]}", 210_000),
    ),
    "wrong tasks": (
        "POST",
        "/v1/runs",
        filled('{"crawler":"plain","tasks":[', '{"args":{"a":[],"b":[]}}', "]}", 240_000),
    ),
    "outcomes": (
        "POST",
        "/v1/runs",
        filled('{"crawler":"plain","retries":{"on":[', "1", "]}}", 299_000),
    ),
    "a million tags": ("POST", "/v1/runs", filled('{"crawler":"plain","tags":[', "1", "]}")),
    "long numbers": (
        "POST",
        "/v1/runs",
        filled('{"crawler":"plain","poll_minutes":[', "9" * 4299, "]}"),
    ),
    "commas in a text": ("POST", "/v1/runs", b'{"crawler":"' + b"," * 2_000_000 + b'"}'),
    "a reason of a mebibyte": (
        "POST",
        "/v1/runs/1/stop",
        b'{"reason":"' + b"x" * (BODY_MAX - 20) + b'"}',
    ),
    "a list as a reason": ("POST", "/v1/runs/1/stop", filled('{"reason":[', "1", "]}", BODY_MAX)),
    "a name of a mebibyte": ("POST", "/v1/runs/1/stop", b'{"' + b"x" * (BODY_MAX - 20) + b'":1}'),
    "wrong jobs": (
        "POST",
        "/v1/managers/1/jobs",
        filled('{"jobs":[', '{"a":1,"b":2,"c":3}', "]}", BODY_MAX),
    ),
    "wrong names of steps": (
        "POST",
        "/v1/graphs/g/cancel",
        filled('{"names":[', "1", "]}", BODY_MAX),
    ),
    "a page of numbers": ("PUT", "/v1/graphs/g/pages/0", filled('{"steps":[', "1", "]}")),
    "a target of a schedule": (
        "PUT",
        "/v1/schedules/s",
        filled('{"run":{"crawler":"plain","tags":[', "1", "]}}", BODY_MAX),
    ),
    "a filter of a webhook": (
        "PUT",
        "/v1/webhooks/w",
        filled('{"url":"https://a","events":[', "1", "]}", BODY_MAX),
    ),
    "deep": ("POST", "/v1/runs", f'{{"crawler":{nested(500_000)}}}'.encode()),
}
#: The path of a page, and its form.
FORMS = {
    "lines of tasks": (
        "/runs/new",
        b"key=%s&crawler=plain&tasks=" % (b"0" * 32) + b"%7B%7D%0A" * 200_000,
    ),
    "lines of settings": (
        "/runs/new",
        b"key=%s&crawler=plain&settings=" % (b"0" * 32) + b"%0A" * 600_000,
    ),
    "tags": ("/runs/new", b"key=%s&crawler=plain&tags=" % (b"0" * 32) + b"a," * 1_000_000),
    "escapes": ("/runs/new", b"key=" + b"%41" * 690_000),
    "fields": ("/runs/new", b"&".join([b"key=1"] * 300_000)),
    "options": ("/start/manager", b"plan=x" + (b"&opt-a=" + b"x" * 1000) * 1900),
    "steps": (
        "/start/graph",
        b"plan=json&key=%s&steps=[" % (b"0" * 32) + b"1," * 1_000_000 + b"1]",
    ),
    "a schedule": (
        "/schedules/new",
        b'name=s&kind=run&request={"tags":[' + b"1," * 500_000 + b"1]}",
    ),
}
