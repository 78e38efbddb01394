"""No page of another origin, even with a host name that resolves to us, can use a port of
``crawlctl dev``.

The ports are those on which the system sees the stack's processes listen, so that a new one cannot
be forgotten.
"""

from __future__ import annotations

import socket
from pathlib import Path

from tests.dev.dev_support import Dev

EVIL = "http://evil.example"
PATHS = (
    "/",
    "/index.html",
    "/healthz",
    "/readyz",
    "/metrics",
    "/v1/runs",
    "/v1/crawlers",
    "/v1/deployments/onetime",
)
TEMPORAL_PATHS = ("/api/v1/namespaces/default/workflows/x", "/namespaces/default/workflows/x")
START = b'{"workflowType": {"name": "CrawlerLifecycleWorkflow"}, "taskQueue": {"name": "crawler-lifecycle"}}'


def _family(root: int) -> set[int]:
    """A process and everything it started."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it ended meanwhile
    found, before = {root}, set[int]()
    while found != before:
        before = set(found)
        found |= {pid for pid, parent in parents.items() if parent in found}
    return found


def _listening(pids: set[int]) -> set[tuple[str, int]]:
    """The addresses at which these processes listen."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(str(link.readlink()))
            except OSError:
                continue  # closed meanwhile
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = words = line.split()
            if state == "0A" and f"socket:[{words[9]}]" in inodes:
                host, _, port = local.partition(":")
                found.add(("127.0.0.1" if host == "0100007F" else host, int(port, 16)))
    return found


def _ask(
    port: int, method: str, path: str, host: str, origin: str | None, body: bytes = b""
) -> tuple[int | None, bytes]:
    """Return status and body of the response, or no status if the port does not speak HTTP/1."""
    head = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
    head += [f"Origin: {origin}"] if origin else []
    head += ["Content-Type: text/plain", f"Content-Length: {len(body)}"] if method == "POST" else []
    with socket.create_connection(("127.0.0.1", port), 30) as connection:
        connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
        answer = bytearray()
        try:
            while part := connection.recv(65536):
                answer += part
        except OSError:
            pass  # cut off: whatever came before counts
    first, _, rest = bytes(answer).partition(b"\r\n")
    return (int(first.split()[1]) if first.startswith(b"HTTP/1.") else None), rest


def _is_counters(port: int) -> bool:
    """Return whether these are Temporal's own counters: its only page shows numbers, and it accepts
    no input.
    """
    status, body = _ask(port, "GET", "/metrics", "127.0.0.1", None)
    return status == 200 and b"# TYPE " in body


def test_no_port_is_of_use_to_a_foreign_page(serving: Dev) -> None:
    assert serving.process is not None
    known, before = serving.known, serving.crawlctl("list", "-o", "name").stdout
    addresses = _listening(_family(serving.process.pid))
    assert {host for host, _ in addresses} == {"127.0.0.1"}
    ports = {port for _, port in addresses}
    ours = {
        int(str(known[name]).rpartition(":")[2])
        for name in ("gateway", "scheduler", "worker", "site", "temporal")
    }
    assert ours < ports
    of_temporal = {port for _, port in _listening({known["processes"]["temporal"]})}
    counters = {port for port in of_temporal if _is_counters(port)}
    assert len(counters) <= 1
    answered = set()
    for port in sorted(ports - counters):
        own = f"127.0.0.1:{port}"
        for path in (*PATHS, *TEMPORAL_PATHS):
            for method, host, origin in (
                ("POST", own, EVIL),
                ("POST", own, "null"),
                ("POST", own, "http://127.0.0.1:3000"),
                ("POST", own, f"http://localhost:{port}"),
                ("POST", f"evil.example:{port}", f"{EVIL}:{port}"),
                ("GET", f"evil.example:{port}", None),
            ):
                status, _ = _ask(
                    port, method, path, host, origin, START if method == "POST" else b""
                )
                # Temporal responds to unknown paths before it checks the host.
                unknown = {404} if port in of_temporal and path not in TEMPORAL_PATHS else set()
                assert status in {None, 403} | unknown, (port, method, path, host, origin, status)
                answered |= {port} if status is not None else set()
    assert ours - answered == {int(known["temporal"].rpartition(":")[2])}, (
        "that one speaks gRPC: HTTP/1 gets nothing"
    )
    for port in counters:
        for path in ("/", *PATHS, *TEMPORAL_PATHS):
            if path != "/metrics":
                assert _ask(port, "POST", path, "127.0.0.1", EVIL, START)[0] in (404, 405)
    assert serving.crawlctl("list", "-o", "name").stdout == before


def test_programs_of_this_machine_and_the_gateways_own_page_are_answered(serving: Dev) -> None:
    for name, path in (
        ("gateway", "/v1/runs"),
        ("scheduler", "/v1/crawlers"),
        ("worker", "/readyz"),
        ("site", "/"),
    ):
        port = int(serving.known[name].rpartition(":")[2])
        assert _ask(port, "GET", path, f"127.0.0.1:{port}", None)[0] == 200, name
        assert _ask(port, "GET", path, f"localhost:{port}", None)[0] == 200, name
    gateway = int(serving.known["gateway"].rpartition(":")[2])
    assert (
        _ask(gateway, "GET", "/v1/runs", f"127.0.0.1:{gateway}", f"http://127.0.0.1:{gateway}")[0]
        == 200
    )
