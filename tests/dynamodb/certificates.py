"""Certificates for servers on the loopback, signed by an authority of our own."""

import ssl
import subprocess
from pathlib import Path

EXTENSIONS = """
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = IP:127.0.0.1
[elsewhere]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:elsewhere.example.com
"""


def openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """An authority, a server that it vouches for, and one whose name is another."""
    (folder / "extensions").write_text(EXTENSIONS)
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for name in ("authority", "server", "elsewhere"):
        openssl(
            "req",
            *curve,
            "-subj",
            f"/CN={name}",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            folder=folder,
        )
        signer = (
            ("-signkey", "authority.key")
            if name == "authority"
            else ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial")
        )
        openssl(
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            *signer,
            "-days",
            "2",
            "-extfile",
            "extensions",
            "-extensions",
            name,
            "-out",
            f"{name}.pem",
            folder=folder,
        )


def served(certificates: Path, name: str = "server") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return context
