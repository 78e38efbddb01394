"""A client of an OpenID Connect provider, which requests its addresses, its keys, and the token for
the code of a login.

Sizes and times are limited, and redirects are not followed. Proxies and certificates come from the
environment (``HTTPS_PROXY``, ``NO_PROXY``, ``SSL_CERT_FILE``).
"""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

import httpx

from crawler_lifecycle.domain.errors import IssuerUnavailable

#: The maximum duration of a call in seconds, and the maximum size of a response in bytes.
TIMEOUT_S = 5.0
ANSWER_MAX = 512 * 1024
#: Addresses in the discovery document that we use, or to which we redirect people.
ADDRESSES = ("authorization_endpoint", "token_endpoint", "jwks_uri")
_CHECK = "start it, or check LIFECYCLE_OIDC__ISSUER"

Document = dict[str, Any]


class Provider:
    """A provider at this address. ``secret`` is ``None`` for a public client."""

    def __init__(self, issuer: str, client_id: str, secret: str | None) -> None:
        self._issuer = issuer
        self._secure = issuer.startswith("https:")
        self._client = {"client_id": client_id} | (
            {} if secret is None else {"client_secret": secret}
        )
        self._tls: ssl.SSLContext | None = None

    async def read(self) -> tuple[Document, Document]:
        """Return the discovery document and the document with the keys.

        Raises ``IssuerUnavailable``.
        """
        self._tls = None  # the certificates may have changed
        found = await self._ask(
            "GET", f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        )
        if found.get("issuer") != self._issuer:
            named = f"{found.get('issuer')!r:.200}; set LIFECYCLE_OIDC__ISSUER to its own name"
            raise IssuerUnavailable(f"{self._issuer} calls itself {named}")
        for name in ADDRESSES:
            if not str(found.get(name)).startswith("https://" if self._secure else "http://"):
                raise IssuerUnavailable(
                    f"{self._issuer} does not give an address with its own scheme as {name}; "
                    "correct the issuer"
                )
        return found, await self._ask("GET", found["jwks_uri"])

    async def redeem(self, document: Document, **form: str) -> Document:
        """Exchange the code from a login, and return the response: an ID token, or an error.

        Raises ``IssuerUnavailable``.
        """
        form |= {"grant_type": "authorization_code", **self._client}
        return await self._ask("POST", document["token_endpoint"], data=form)

    async def _ask(self, method: str, url: str, **more: Any) -> Document:
        content = bytearray()
        try:
            # Loading certificates blocks all other requests, and anybody can trigger a call with a
            # code.
            if self._tls is None:
                # Plain HTTP does not need certificates.
                self._tls = httpx.create_ssl_context(verify=self._secure)
            async with (
                asyncio.timeout(TIMEOUT_S),
                httpx.AsyncClient(verify=self._tls, timeout=TIMEOUT_S) as client,
                client.stream(
                    method, url, headers={"Accept-Encoding": "identity"}, **more
                ) as answer,
            ):
                async for chunk in answer.aiter_raw():
                    content += chunk
                    if len(content) > ANSWER_MAX:
                        raise IssuerUnavailable(
                            f"{url} returned more than {ANSWER_MAX} bytes; {_CHECK}"
                        )
            found = json.loads(content)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError) as error:
            why = str(error)[:200] or type(error).__name__
            fix = "set SSL_CERT_FILE to its authority" if "CERTIFICATE_VERIFY" in why else _CHECK
            raise IssuerUnavailable(f"{url} returned no usable response: {why}; {fix}") from None
        # A refused code is also a response.
        if not isinstance(found, dict) or answer.status_code >= (500 if method == "POST" else 300):
            raise IssuerUnavailable(
                f"{url} returned HTTP {answer.status_code} instead of the requested document; "
                f"{_CHECK}"
            )
        return found
