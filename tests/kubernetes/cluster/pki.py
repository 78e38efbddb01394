"""Certificates of one cluster: its own authority, the API server's two, and the key of service
account tokens.
"""

from __future__ import annotations

import base64
import ipaddress
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """Signs the certificates of the parts.

    Everything is written below ``folder`` and valid for 30 days.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("crawl test authority", None)
        constraint = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, self._key).add_extension(
            constraint, critical=True
        )
        builder = builder.add_extension(_usage(authority=True), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, *, group: str | None = None, addresses: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        """Issue certificate and key: for a server if ``addresses`` are given, else for a client
        ``name`` of ``group``.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name, group), self._name, key)
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if addresses else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(signer, critical=False)
        if addresses:
            names: list[x509.GeneralName] = [
                x509.IPAddress(ipaddress.ip_address(a)) for a in addresses
            ]
            names.append(x509.DNSName("localhost"))
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = self.folder / f"{name}.crt"
        certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        return certificate, _write_key(self.folder / f"{name}.key", key)

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Make a private and a public key for the tokens of service accounts."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = self.folder / f"{name}.pub"
        encoded = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, encoded))
        return _write_key(self.folder / f"{name}.key", key), public

    def kubeconfig(self, path: Path, api: str, token: str, namespace: str = "default") -> Path:
        """Return a kubeconfig that trusts this authority and uses ``token``, as JSON, which is also
        YAML.
        """
        trust = base64.b64encode(self.certificate.read_bytes()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": api, "certificate-authority-data": trust}}
            ],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [
                {
                    "name": "test",
                    "context": {"cluster": "test", "user": "test", "namespace": namespace},
                }
            ],
            "current-context": "test",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path


def _name(common: str, group: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
    )
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(
        now + timedelta(days=30)
    )
    return builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> Path:
    path.touch(mode=0o600)
    encoding = (
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    path.write_bytes(key.private_bytes(*encoding))
    return path
