"""A self-signed certificate for one host name."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def certificate(file: Path, host: str) -> Path:
    """Write the certificate with its key.

    It is trusted if ``SSL_CERT_FILE`` names the file.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    )
    made = (
        made.serial_number(7)
        .not_valid_before(datetime(2020, 1, 1))
        .not_valid_after(datetime(2120, 1, 1))
    )
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    plain = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(
        plain + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    return file
