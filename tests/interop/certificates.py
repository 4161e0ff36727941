"""Make a certificate authority and a server certificate for 127.0.0.1, good for a day."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Certificates", "make_certificates"]

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    """Hold what each side needs: PEM text for Node, a path and a context for `ssl`."""

    ca_pem: str
    ca_path: str
    key_pem: str
    cert_pem: str
    server_context: ssl.SSLContext


def make_certificates(directory: Path) -> Certificates:
    """Make them, and write them into `directory`."""
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _builder("wsmux test authority", "wsmux test authority", authority_key, ca=True)
    authority_cert = authority.sign(authority_key, hashes.SHA256())
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    builder = _builder("127.0.0.1", "wsmux test authority", key, ca=False)
    for extension in (names, usage, issuer):
        builder = builder.add_extension(extension, critical=False)
    cert = builder.sign(authority_key, hashes.SHA256())
    ca_pem, cert_pem = (
        one.public_bytes(serialization.Encoding.PEM) for one in (authority_cert, cert)
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (directory / "ca.pem").write_bytes(ca_pem)
    (directory / "server.pem").write_bytes(key_pem + cert_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    return Certificates(
        ca_pem=ca_pem.decode(),
        ca_path=str(directory / "ca.pem"),
        key_pem=key_pem.decode(),
        cert_pem=cert_pem.decode(),
        server_context=context,
    )


def _builder(
    subject: str, issuer: str, key: ec.EllipticCurvePrivateKey, *, ca: bool
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    signs = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
