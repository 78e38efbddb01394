"""A small OpenID Connect provider: it knows its people, signs tokens, and requires PKCE as a real
one does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from functools import cache
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.support.faulty_http import Answer, FaultyServer

CLIENT, SECRET = "crawls", "a secret of the client"
#: Operations that exist only with an issuer; ``tests/gateway/access/test_oidc.py`` tests them.
SIGN_IN = {"signIn", "endSignIn"}
#: People who may log in: address -> password and groups.
PEOPLE = {
    "ann@example.com": ("correct horse", ["operators", "all"]),
    "bob@example.com": ("battery staple", ["all"]),
}
FORM = """<!doctype html><html lang="en"><title>Log in</title><form method="post" action="{action}">
<input id="login" name="login"><input id="password" name="password" type="password"><button>Login</button></form>"""


@cache
def private_key(algorithm: str, kid: str = "") -> Any:
    """Return a key for this algorithm; a different one for each ``kid``."""
    match algorithm:
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "short":
            return rsa.generate_private_key(65537, 1024)
    return rsa.generate_private_key(65537, 2048)


def jwk(algorithm: str, kid: str, **more: Any) -> dict[str, Any]:
    """Return the public half, as the provider publishes it."""
    name = "RS256" if algorithm == "short" else algorithm
    public = private_key(algorithm, kid).public_key()
    made = jwt.get_algorithm_by_name(name).to_jwk(public, as_dict=True)
    return {key: value for key, value in made.items() if key != "key_ops"} | {
        "kid": kid,
        "alg": name,
        **more,
    }


class Issuer(FaultyServer):
    """Its address is ``url``, with the host name ``localhost``: another site than a gateway at
    127.0.0.1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.keys = [jwk("ES256", "one")]
        self.more: dict[str, Any] = {}
        """More claims of each token of a login."""
        self.discovery: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}

    @property
    def issuer(self) -> str:
        return self.url.replace("127.0.0.1", "localhost")

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return settings of a gateway that knows its people."""
        roles = {"operators": {"role": "operate", "project": "*"}}
        return {
            "issuer": self.issuer,
            "client_id": CLIENT,
            "client_secret": SECRET,
            "roles": roles,
            **more,
        }

    def claims(self, who: str, **more: Any) -> dict[str, Any]:
        now = int(time.time())
        known = {
            "email": who,
            "email_verified": True,
            "sub": f"id-of-{who}",
            "groups": PEOPLE[who][1],
        }
        return {"iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 3600, **known, **more}

    def token(
        self,
        who: str = "ann@example.com",
        alg: str = "ES256",
        kid: str = "one",
        head: Any = None,
        **more: Any,
    ) -> str:
        """Return a signed token; claims that are ``None`` are left out."""
        claims = {
            name: value for name, value in self.claims(who, **more).items() if value is not None
        }
        return jwt.encode(claims, private_key(alg, kid), alg, headers={"kid": kid, **(head or {})})

    def log_in(self, address: str, email: str, password: str) -> str | None:
        """Do what a browser does at the login address. Returns the address to which the provider
        redirects, with a code.
        """
        asked = dict(parse_qsl(urlsplit(address).query))
        if PEOPLE.get(email, ("",))[0] != password:
            return None
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked | {"email": email}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        path = urlsplit(target).path
        form = {name: value[0] for name, value in parse_qs(body.decode()).items()}
        if path == "/.well-known/openid-configuration":
            ends = {"authorization_endpoint": "auth", "token_endpoint": "token", "jwks_uri": "keys"}
            found = {name: f"{self.issuer}/{end}" for name, end in ends.items()}
            return Answer(
                body=json.dumps({"issuer": self.issuer, **found, **self.discovery}).encode()
            )
        if path == "/keys":
            return Answer(body=json.dumps({"keys": self.keys}).encode())
        if path == "/auth" and method == "GET":
            page = FORM.format(action=target.replace("&", "&amp;"))
            return Answer(body=page.encode(), content_type="text/html; charset=utf-8")
        if path == "/auth":
            to = self.log_in(target, form["login"], form["password"])
            return (
                Answer(303, b"", headers={"Location": to})
                if to
                else Answer(401, b"wrong", "text/plain")
            )
        if path == "/token":
            return self._redeem(form)
        return Answer(404)

    def _redeem(self, form: dict[str, str]) -> Answer:
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
            return Answer(401, b'{"error": "invalid_client"}')
        if form["grant_type"] == "password":
            known = PEOPLE.get(form["username"], ("",))[0] == form["password"]
            kept: dict[str, str] | None = (
                {"email": form["username"], "nonce": ""} if known else None
            )
        else:
            kept = self.codes.pop(form["code"], None)
            hashed = base64.urlsafe_b64encode(
                hashlib.sha256(form["code_verifier"].encode()).digest()
            ).decode()
            fits = kept and (kept["code_challenge"], kept["redirect_uri"]) == (
                hashed.rstrip("="),
                form["redirect_uri"],
            )
            kept = kept if fits else None
        if kept is None:
            return Answer(400, b'{"error": "invalid_grant", "error_description": "no such code"}')
        token = self.token(kept["email"], **{"nonce": kept["nonce"], **self.more})
        return Answer(
            body=json.dumps(
                {"id_token": token, "access_token": "x", "token_type": "Bearer"}
            ).encode()
        )
