"""The test cluster's own client for its API server: small, with an administrator's rights, without
code of the product.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

Object = dict[str, Any]


class AdminError(Exception):
    """The API server refused; ``status`` is its HTTP status, and the text is its message."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status}: {words}")
        self.status = status


class Admin:
    """Plain requests, each with a deadline."""

    def __init__(self, api: str, token: str, authority: Path, timeout_s: float = 30.0) -> None:
        self.api, self._token, self._timeout_s = api, token, timeout_s
        self._authority = authority

    @cached_property
    def _opener(self) -> urllib.request.OpenerDirector:
        """Return an opener without proxies.

        Otherwise each request would read the environment, which pytest changes, and which a thread
        must not read meanwhile.
        """
        secured = urllib.request.HTTPSHandler(
            context=ssl.create_default_context(cafile=str(self._authority))
        )
        return urllib.request.build_opener(urllib.request.ProxyHandler({}), secured)

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        content: str = "application/json",
        begun: Callable[[], None] | None = None,
    ) -> bytes:
        """Return the body of the response; ``begun`` is called when it begins to arrive.

        Raises AdminError for a refusal, OSError without a response.
        """
        data = (
            None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        )
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": content,
            "Accept": "application/json",
        }
        request = urllib.request.Request(self.api + path, method=method, data=data, headers=headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                if begun is not None:
                    begun()
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise AdminError(error.code, error.read().decode(errors="replace")[:2000]) from None

    def get(self, path: str) -> Object:
        """One object or list. Raises as ``request``."""
        return self._object(self.request("GET", path))

    def find(self, path: str) -> Object | None:
        """Return one object, or nothing if it does not exist or the server cannot be reached now."""
        try:
            return self.get(path)
        except AdminError as error:
            if error.status in (404, 403) or error.status >= 500:
                return None
            raise
        except OSError:
            return None

    def post(self, path: str, body: object) -> Object:
        """Create an object. Raises as ``request``; 409 when it exists."""
        return self._object(self.request("POST", path, body))

    def ensure(self, path: str, body: object) -> None:
        """Create an object unless it exists."""
        try:
            self.post(path, body)
        except AdminError as error:
            if error.status != 409:
                raise

    def patch(self, path: str, body: object, kind: str = "merge") -> Object:
        """Change an object: ``kind`` is merge, strategic-merge or json."""
        return self._object(self.request("PATCH", path, body, f"application/{kind}-patch+json"))

    def delete(self, path: str, options: object = None) -> Object:
        """Delete an object or a collection."""
        return self._object(self.request("DELETE", path, options))

    def is_killing(self, namespace: str, pod: str) -> bool:
        """Return whether the pod's node has begun to end it, with its grace period at that time."""
        chosen = f"fieldSelector=reason=Killing,involvedObject.name={pod}"
        return bool(self.get(f"/api/v1/namespaces/{namespace}/events?{chosen}")["items"])

    def text(self, path: str, begun: Callable[[], None] | None = None) -> str:
        """Return a response that is not JSON: a log, metrics.

        ``begun`` is called at the beginning of a slow one.
        """
        return self.request("GET", path, begun=begun).decode(errors="replace")

    def ready(self) -> bool:
        """Return whether the server reports that it is ready."""
        try:
            return self.request("GET", "/readyz") == b"ok"
        except (AdminError, OSError):
            return False

    @staticmethod
    def _object(body: bytes) -> Object:
        found: Object = json.loads(body)
        return found
