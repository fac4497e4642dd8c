"""An authority of a test's own, and what it certifies; made by the program openssl."""

import subprocess
from pathlib import Path

from tests.engines.servers import program

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Authority:
    """Whom to trust: its certificate, and certificates for whoever asks. Servers can read them."""

    def __init__(self, folder: Path, name: str = "tests") -> None:
        self._folder, self._name = folder, name
        self.file, self._key = folder / f"{name}-ca.crt", folder / f"{name}-ca.key"
        # Python since 3.13 wants an authority to say that it may sign.
        may = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
        self._run("req", "-x509", *CURVE, "-subj", f"/CN={name}", *may, *self._out(self.file, self._key))

    def certify(self, common_name: str, *names: str) -> tuple[Path, Path]:
        """A certificate and its key; names are such as ``IP:127.0.0.1`` or ``DNS:localhost``."""
        stem = f"{self._name}-{common_name}"
        request, certificate, key, more = (
            self._folder / f"{stem}.{suffix}" for suffix in ("csr", "crt", "key", "ext")
        )
        more.write_text(f"subjectAltName={','.join(names or (f'DNS:{common_name}',))}\n")
        self._run("req", *CURVE, "-subj", f"/CN={common_name}", *self._out(request, key))
        signed = ("-CA", str(self.file), "-CAkey", str(self._key), "-CAcreateserial", "-days", "2")
        given = ("-in", str(request), "-extfile", str(more), "-out", str(certificate))
        self._run("x509", "-req", *given, *signed)
        return certificate, key

    @staticmethod
    def _out(certificate: Path, key: Path) -> tuple[str, ...]:
        return "-out", str(certificate), "-keyout", str(key)

    @staticmethod
    def _run(*words: str) -> None:
        subprocess.run([program("openssl"), *words], check=True, capture_output=True)
