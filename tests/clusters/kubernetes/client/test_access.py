"""Where the API is and who we are: kubeconfigs, the pod's own account, rotating tokens,
certificates, proxies.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client import credentials
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import CredentialsRejected, NoAnswer
from crawler_lifecycle.clusters.kubernetes.client.objects import Job
from crawler_lifecycle.domain.errors import InvalidRequest
from tests.kubernetes.cluster.pki import Authority
from tests.support.kube_api import FakeApiServer
from tests.support.kube_api.clients import patient
from tests.support.ports import deaf_port


def _listed(api: Api) -> int:
    try:
        return len(api.listing(api.jobs_path(), Job).items)
    finally:
        api.close()


def _rewrite(path: Path, **user: Any) -> Path:
    config = json.loads(path.read_text())
    config["users"][0]["user"] = user
    path.write_text(json.dumps(config))
    return path


# --- which one ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No cluster but that of the test, whatever this machine has."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_given_one_then_the_variable_then_the_pod_then_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.write_text("{}")
    with pytest.raises(InvalidRequest, match="LIFECYCLE_CLUSTER__KUBECONFIG"):
        credentials.find(None, None)
    home = tmp_path / "home" / ".kube" / "config"
    home.parent.mkdir(parents=True)
    home.write_text("{}")
    assert credentials.find(None, None).kubeconfig == str(home)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert credentials.find(None, None).kubeconfig is None
    # Only kubeconfigs have contexts.
    assert credentials.find(None, "other").kubeconfig == str(home)
    monkeypatch.setenv("KUBECONFIG", "/a:/b")
    assert credentials.find(None, None).kubeconfig == "/a:/b"
    assert credentials.find(given, None).kubeconfig == str(given)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is not a file"),
        ("", "cannot be used"),
        ("{", "cannot be used"),
        ("a: [", "cannot be used"),
        ("[]", "cannot be used"),
        ("apiVersion: v1\nkind: Config\n", "cannot be used"),
        ('{"current-context":"x","contexts":[],"clusters":[],"users":[]}', "cannot be used"),
    ],
)
def test_a_kubeconfig_that_is_none_is_refused_by_name(
    tmp_path: Path, text: str | None, words: str
) -> None:
    path = tmp_path / "broken"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidRequest, match=words) as caught:
        Api(kubeconfig=path, namespace="crawls")
    assert str(path) in str(caught.value)


def test_a_context_that_does_not_exist_is_refused(server: FakeApiServer) -> None:
    with pytest.raises(InvalidRequest, match="other"):
        Api(kubeconfig=server.kubeconfig(), context="other", namespace="crawls")


def test_the_context_is_followed(server: FakeApiServer, tmp_path: Path) -> None:
    path = server.kubeconfig()
    config = json.loads(path.read_text())
    config["contexts"].append({"name": "second", "context": {"cluster": "fake", "user": "second"}})
    config["users"].append({"name": "second", "user": {"token": "two"}})
    path.write_text(json.dumps(config))
    _listed(patient(server, kubeconfig=path, context="second"))
    assert server.requests[-1].headers["authorization"] == "Bearer two"


# --- tokens ---------------------------------------------------------------------------------------


def test_the_file_of_a_token_is_read_again_after_a_refusal(
    server: FakeApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    path = _rewrite(server.kubeconfig(), tokenFile="token")  # relative to the kubeconfig
    api = patient(server, kubeconfig=path)
    api.listing(api.jobs_path(), Job)
    token.write_text("second\n")
    server.tokens = {"second"}
    assert _listed(api) == 0
    shown = [request.headers["authorization"] for request in server.requests]
    assert shown == ["Bearer one", "Bearer one", "Bearer second"]
    token.unlink()
    assert _listed(api) == 0  # between two rotations, the last one is still valid
    server.tokens = {"third"}
    with pytest.raises(
        CredentialsRejected,
        match=r"the credentials cannot be read again: kubeconfig .* cannot be used; .*token",
    ):
        _listed(api)


def test_in_a_pod_the_rotated_token_is_shown_after_a_refusal(
    tmp_path: Path, authority: Authority, request: pytest.FixtureRequest
) -> None:
    with _tls_server(authority) as server:
        token = _pod_of(server, tmp_path, request)
        api = patient(server, kubeconfig=None)
        api.listing(api.jobs_path(), Job)
        server.tokens = {"second"}
        # As the kubelet does: another file is moved to its path.
        (tmp_path / "new").write_text("second")
        (tmp_path / "new").rename(token)
        assert _listed(api) == 0
        assert [r.headers["authorization"] for r in server.requests][::2] == [
            "bearer first",
            "bearer second",
        ]
        assert api.source == "the service account of this pod"


def _pod_of(server: FakeApiServer, folder: Path, request: pytest.FixtureRequest) -> Path:
    from kubernetes.config import incluster_config

    patch = pytest.MonkeyPatch()
    request.addfinalizer(patch.undo)
    (folder / "token").write_text("first")
    patch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(folder / "token"))
    patch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(folder / "ca.crt"))
    host, port = server.url.removeprefix("https://").split(":")
    patch.setenv("KUBERNETES_SERVICE_HOST", host)
    patch.setenv("KUBERNETES_SERVICE_PORT", port)
    return folder / "token"


def test_a_pod_without_its_token_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from kubernetes.config import incluster_config

    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "none"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(
        InvalidRequest, match=r"the service account of this pod: cannot be used; .*token"
    ):
        Api(namespace="crawls")


def test_a_plugins_token_is_shown_and_renewed_after_a_refusal(
    server: FakeApiServer, tmp_path: Path
) -> None:
    told = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    answer = tmp_path / "answer"
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\nexec cat {answer}\n")
    plugin.chmod(0o755)
    answer.write_text(json.dumps({**told, "status": {"token": "one"}}))
    command = {"apiVersion": told["apiVersion"], "command": str(plugin), "interactiveMode": "Never"}
    api = patient(server, kubeconfig=_rewrite(server.kubeconfig(), exec=command))
    api.listing(api.jobs_path(), Job)
    answer.write_text(json.dumps({**told, "status": {"token": "two"}}))
    server.tokens = {"two"}
    assert _listed(api) == 0
    assert [r.headers["authorization"] for r in server.requests] == [
        "Bearer one",
        "Bearer one",
        "Bearer two",
    ]


# --- certificates ---------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _tls_server(authority: Authority, *, client: bool = False) -> FakeApiServer:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server", addresses=("127.0.0.1",)))
    if client:
        authority.issue("client")
        context.load_verify_locations(authority.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return FakeApiServer(authority.folder, tls=context)


def test_the_server_is_checked_by_the_authority_of_the_kubeconfig(
    tmp_path: Path, authority: Authority
) -> None:
    with _tls_server(authority) as server:
        good = server.kubeconfig(**{"certificate-authority": "ca.crt"})
        assert _listed(patient(server, kubeconfig=good)) == 0
        Authority(tmp_path / "other")
        for bad in ({}, {"certificate-authority": "other/ca.crt"}):
            path = server.kubeconfig(name="bad", **bad)
            with pytest.raises(
                NoAnswer, match=r"TLS with https://127.0.0.1:.* failed: .*CERTIFICATE_VERIFY_FAILED"
            ):
                _listed(patient(server, kubeconfig=path))
        # Neither the token nor anything else was sent to the foreign server.
        assert len(server.requests) == 1


def test_the_name_of_the_server_may_be_another(authority: Authority) -> None:
    with _tls_server(authority) as server:
        keys = {"certificate-authority": "ca.crt"}
        good = server.kubeconfig(**keys, **{"tls-server-name": "localhost"})
        assert _listed(patient(server, kubeconfig=good)) == 0
        bad = server.kubeconfig(**keys, **{"tls-server-name": "other.crawl.test"})
        with pytest.raises(NoAnswer, match="TLS with"):
            _listed(patient(server, kubeconfig=bad))


def test_nobody_is_checked_only_where_the_kubeconfig_says_so_and_that_is_logged(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with _tls_server(authority) as server, warnings.catch_warnings():
        path = server.kubeconfig(**{"insecure-skip-tls-verify": True})
        assert _listed(patient(server, kubeconfig=path)) == 0
    assert "insecure-skip-tls-verify is set" in caplog.text


def test_a_renewed_client_certificate_is_used_after_a_refusal(
    tmp_path: Path, authority: Authority
) -> None:
    with _tls_server(authority, client=True) as server:
        path = server.kubeconfig(**{"certificate-authority": "ca.crt"})
        _rewrite(path, **{"client-certificate": "client.crt", "client-key": "client.key"})
        api = patient(server, kubeconfig=path)
        api.listing(api.jobs_path(), Job)
        before = api._wire._access.current()[0].certificates
        server.tokens = (
            set()
        )  # requests without a token are refused now, as with an expired certificate
        with pytest.raises(CredentialsRejected):
            api.listing(api.jobs_path(), Job)
        authority.issue("client")
        with pytest.raises(CredentialsRejected):
            api.listing(api.jobs_path(), Job)
        assert server.count() == 4  # sent once more, because there were new credentials
        assert api._wire._access.current()[0].certificates != before
        server.tokens = None
        assert _listed(api) == 0


def test_every_thread_that_was_refused_with_the_old_certificate_shows_the_new_one(
    tmp_path: Path, authority: Authority
) -> None:
    """The first thread reads the new one, and the others can present it, too."""
    with _tls_server(authority, client=True) as server:
        path = server.kubeconfig(**{"certificate-authority": "ca.crt"})
        _rewrite(path, **{"client-certificate": "client.crt", "client-key": "client.key"})
        mine = credentials.Access(credentials.Source(str(path), None), 4)
        asked_at = time.monotonic()
        old, shown = mine.current()
        (tmp_path / "client.crt").write_text((tmp_path / "client.crt").read_text() + "\n")
        assert [mine.renew(old, shown, asked_at) for _ in range(3)] == [True] * 3
        new, _ = mine.current()
        assert not mine.renew(new, shown, asked_at)
        mine.close()


def test_new_credentials_never_lead_to_another_server(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """Somebody switched the context during a poll: our objects are missing there, and this proves
    nothing.
    """
    (tmp_path / "other").mkdir()
    with FakeApiServer(tmp_path / "other") as other:
        api = patient(server)
        api.listing(api.jobs_path(), Job)
        server.tokens = {"new"}
        (tmp_path / "kubeconfig").write_text(other.kubeconfig(token="new").read_text())
        words = f"names the server {other.url} now, but this process began with {server.url}; restart this process"
        for _ in range(2):
            with pytest.raises(CredentialsRejected, match=words):
                api.listing(api.jobs_path(), Job)
        server.kubeconfig(token="new")
        assert _listed(api) == 0
        assert other.requests == []


# --- proxies --------------------------------------------------------------------------------------


def test_a_variable_of_the_environment_leads_nobody_astray(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with deaf_port() as port:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        assert _listed(patient(server)) == 0


def test_the_proxy_of_a_kubeconfig_is_used(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")  # which applies to other proxies
    there = server.kubeconfig(**{"proxy-url": server.url})
    assert _listed(patient(server, kubeconfig=there)) == 0
    # The form of requests to proxies.
    assert server.requests[0].target.startswith("http://127.0.0.1")
    with deaf_port() as port, pytest.raises(NoAnswer):
        _listed(
            patient(
                server, kubeconfig=server.kubeconfig(**{"proxy-url": f"http://127.0.0.1:{port}"})
            )
        )


# --- connections ----------------------------------------------------------------------------------


def test_connections_are_watched_over_by_the_kernel(server: FakeApiServer) -> None:
    api = patient(server)
    options = api._wire._access.current()[0].configuration.socket_options
    with socket.socket() as sock:
        for level, name, value in options:
            sock.setsockopt(level, name, value)  # this system knows each of them
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    api.close()


def test_one_connection_serves_one_call_after_the_other(server: FakeApiServer) -> None:
    api = patient(server)
    for _ in range(5):
        api.listing(api.jobs_path(), Job)
    assert len(server._sockets) == 1
    api.close()


def test_the_client_is_the_one_that_is_meant() -> None:
    """The task `test-kubernetes-37` runs these tests with another client, and must not silently use
    ours.
    """
    import kubernetes

    meant = os.environ.get("KUBERNETES_MAJOR", "36")
    assert kubernetes.__version__.split(".")[0] == meant
