"""A real nginx in front of a static page, configured as the documentation says."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engines.dynamodb_local import free_port, wait_for_port
from tests.engines.servers import launched, program

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "server.md"

MAIN = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
{sites}
}}
"""


def documented() -> str:
    """The configuration that the documentation shows."""
    found = re.search(r"```nginx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.S)
    assert found is not None
    return found[1]


@contextmanager
def nginx(limiter_port: int, token: str) -> Iterator[int]:
    """nginx with that configuration, for a server on this machine; the port where it listens."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="zae-limiter-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "index.html").write_text("<p>hello", encoding="utf-8")
        sites = documented().replace("listen 80;", f"listen 127.0.0.1:{port};")
        sites = sites.replace("127.0.0.1:8400", f"127.0.0.1:{limiter_port}").replace("zae_TOKEN", token)
        sites = sites.replace("root /var/www/html;", f"root {folder};")
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder, sites=sites), encoding="utf-8")
        words = (program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr")
        process = launched(words, folder)
        try:
            wait_for_port(port)
            yield port
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
