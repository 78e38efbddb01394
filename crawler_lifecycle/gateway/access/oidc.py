"""Tokens of an OpenID Connect provider: their signatures, and the role and project that a person's
claims grant.

The keys are kept in memory. Tokens can therefore be checked without the provider, and people who
are logged in stay logged in while it is unavailable.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from time import monotonic
from typing import Any

import jwt

from crawler_lifecycle.adapters.oidc import Document, Provider
from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import IssuerUnavailable
from crawler_lifecycle.domain.projects import ALL, NONE
from crawler_lifecycle.gateway.ttl_cache import CachedAnswer
from crawler_lifecycle.settings import OidcSettings
from crawler_lifecycle.web.problems import Problem, unavailable
from crawler_lifecycle.web.serving import unauthorised

from .recorder import present_call
from .tokens import Caller, Role, digest

#: The beginning of the name of each person; the names of our own tokens never begin with it.
PREFIX = "oidc:"
#: The beginning of each signed token: ``{"`` in base64.
SIGNED = "eyJ"
#: Seconds between two reads of the keys.
KEYS_S = 600.0
#: The shortest time in seconds between two reads if tokens name unknown keys.
AGAIN_S = 10.0
#: Seconds for which the keys stay valid while they cannot be read again.
STALE_S = 24 * 3600.0
#: Seconds by which the issuer's clock can differ from ours.
LEEWAY_S = 30
#: The shortest time in seconds between two reads when a known key has not signed a token,
#: because its issuer may have replaced the key.
DOUBT_S = 60.0
#: No other algorithms are accepted, and never one with a shared secret. The algorithm must also
#: match that of the key.
_CHECKS: Any = {
    "algorithms": ["RS256", "PS256", "ES256", "EdDSA"],
    "leeway": LEEWAY_S,
    "options": {"require": ["exp", "iat"], "enforce_minimum_key_length": True},
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+|=-]{0,58}", re.ASCII)
#: The errors that the library raises for input from attackers.
_BROKEN = (
    jwt.PyJWTError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


class Oidc:
    """The people from one issuer. ``page`` is the address to which the issuer sends people back."""

    def __init__(self, of: OidcSettings, page: str) -> None:
        self._of = of
        self.page = page.rstrip("/")
        self.issuer = str(of.issuer)
        self.client_id = str(of.client_id)
        self.scopes = of.scopes
        secret = of.client_secret.get_secret_value() if of.client_secret else None
        self.provider = Provider(self.issuer, self.client_id, secret)
        self.document: Document = {}
        self.problem = f"the keys of {self.issuer} have not been read yet"
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read_at = float("-inf")
        self._again = CachedAnswer(self._renew, AGAIN_S)
        self._doubted = CachedAnswer(self._again.read, DOUBT_S)
        #: Maps each value of the claim to a reference to the rights, and to the rights themselves.
        #: High roles come first, then rights for all projects, because the first value that a
        #: person has decides. The settings of a chart have no order.
        self._grants = {
            value: (
                digest(f"{self.issuer} {of.roles_claim} {value}"),
                Caller("", role, project=grant.project),
            )
            for role, everything in product(reversed(Role), (True, False))
            for value, grant in of.roles.items()
            if (grant.role, grant.project == ALL) == (role, everything)
        }

    async def run(self) -> None:
        """Read the keys until the task is cancelled."""
        await Loop("reading the issuer's keys", KEYS_S, meanwhile="known keys count for a day").run(
            self.read
        )

    async def read(self) -> None:
        """Read the addresses and keys, at most once every ``AGAIN_S`` seconds.

        Raises ``IssuerUnavailable``.
        """
        if problem := await self._again.read():
            raise IssuerUnavailable(problem)

    async def prepare(self, token: str) -> None:
        """Read the keys again if this token names an unknown key, or if the named key has not
        signed it.
        """
        if not token.startswith(SIGNED):
            return
        if (key := self._key(token)) is None:
            await self._again.read()
        elif not _signed(token, key):
            await self._doubted.read()

    async def _renew(self) -> str:
        """Read the keys and return the problem, or an empty string.

        Failures are cached too, so that tokens cannot cause many of them.
        """
        try:
            document, found = await self.provider.read()
            self._keys = {
                key.key_id: key
                for key in jwt.PyJWKSet.from_dict(found).keys
                if key.public_key_use != "enc"
            }
            self.document = document
            self._read_at = monotonic()
            self.problem = ""
        except (IssuerUnavailable, *_BROKEN) as error:
            self.problem = f"{error} ({self.issuer})"
        return self.problem

    def _key(self, token: str) -> jwt.PyJWK | None:
        try:
            head = jwt.get_unverified_header(token)
            # A provider also signs other things, such as tokens that end logins.
            fits = monotonic() - self._read_at < STALE_S and str(
                head.get("typ", "jwt")
            ).lower() in ("jwt", "at+jwt")
            return self._keys[head.get("kid")] if fits else None
        except _BROKEN:
            return None

    def person(self, token: str, nonce: str | None = None) -> tuple[Caller, str, int]:
        """Return the owner of a token, a reference to the rights, and the expiry time in seconds
        since 1970.

        ``nonce`` is the login's nonce, if the token belongs to a login. Raises ``Problem`` with
        401, 403 or 503.
        """
        if (found := self._key(token)) is None and self.problem:
            raise unavailable(
                "issuer_unavailable", f"{self.problem}. The gateway's own tokens still work"
            )
        audience = self._of.audience or self.client_id if nonce is None else self.client_id
        try:
            if found is None:
                raise jwt.InvalidTokenError("the issuer has no key for such a token")
            claims: Document = jwt.decode(
                token, found, audience=audience, issuer=self.issuer, **_CHECKS
            )
            if nonce is not None and (claims.get("nonce"), claims.get("azp", audience)) != (
                nonce,
                audience,
            ):
                raise jwt.InvalidTokenError("it belongs to another login")
        except _BROKEN as error:
            code = (
                "token_expired" if isinstance(error, jwt.ExpiredSignatureError) else "invalid_token"
            )
            raise unauthorised(
                code,
                f"the token of {self.issuer} is refused: {str(error)[:200]}; sign in again "
                "(docs/sign-in.md)",
                error="invalid_token",
            ) from None
        return *self._judge(claims), int(claims["exp"])

    def _judge(self, claims: Document) -> tuple[Caller, str]:
        """Return the owner of these claims, and the reference to the rights.

        Raises ``Problem`` 403 with the fix.
        """
        of = self._of
        name = claims.get(self._of.name_claim)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _lacks(
                claims,
                of.name_claim,
                "which is not a valid name here; set LIFECYCLE_OIDC__NAME_CLAIM to another claim",
            )
        holds = claims.get(of.roles_claim)
        values = holds if isinstance(holds, list) else [holds]
        value = next((grant for grant in self._grants if grant in values), None)
        # Many issuers let people enter any address. An unverified address gives neither a name nor
        # a role.
        if "email" in (of.name_claim, of.roles_claim) and claims.get("email_verified") is not True:
            fix = (
                "not true; verify it, or set LIFECYCLE_OIDC__NAME_CLAIM or "
                "LIFECYCLE_OIDC__ROLES_CLAIM to another claim"
            )
            lack = _lacks(claims, "email_verified", fix)
        elif value is None:
            lack = _lacks(
                claims,
                of.roles_claim,
                "and LIFECYCLE_OIDC__ROLES lists none of these values; ask the operator to add one",
            )
        else:
            held, caller = self._grants[value]
            return replace(caller, name=PREFIX + name), held
        # Only a refusal sets the caller here: while a response is being sent, its token is checked
        # again and again.
        present_call().caller = Caller(PREFIX + name, None, project=NONE)
        raise lack

    def granted(self, name: str, held: str) -> Caller | None:
        """Return the caller with this name and these rights, or ``None`` if the settings no longer
        grant them.
        """
        found = dict(self._grants.values()).get(held)
        return found and replace(found, name=name)


def _signed(token: str, key: jwt.PyJWK) -> bool:
    """Return whether the key has signed this token. Other faults of the token do not matter."""
    try:
        jwt.api_jws.decode(token, key, _CHECKS["algorithms"])
    except jwt.InvalidSignatureError:
        return False
    except _BROKEN:
        pass
    return True


def _lacks(claims: Document, name: str, fix: str) -> Problem:
    return Problem(
        403, "forbidden", f"The issuer's claim {name} contains {claims.get(name)!r:.200}, {fix}"
    )
