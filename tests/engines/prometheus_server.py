"""Prometheus on what was recorded: the server and its tool as Debian has them, on a free port of loopback."""

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.patience import wait_until


def tool(*arguments: object) -> str:
    """Run promtool; what it says, if it is content."""
    program = shutil.which("promtool")
    assert program is not None, "prometheus is not installed: run `make engines`"
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class Recorded:
    """A server with what was recorded."""

    def __init__(self, port: int) -> None:
        self._port = port

    def _get(self, path: str) -> tuple[int, bytes]:
        asking = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            asking.request("GET", path)
            answer = asking.getresponse()
            return answer.status, answer.read()
        finally:
            asking.close()

    @property
    def is_ready(self) -> bool:
        try:
            return self._get("/-/ready")[0] == 200
        except OSError:
            return False

    def over(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series that an expression gives over a stretch of time."""
        asked = urlencode({"query": expression, "start": start, "end": end, "step": step})
        _, body = self._get(f"/api/v1/query_range?{asked}")
        told = json.loads(body)
        assert told["status"] == "success", told
        found: list[dict[str, Any]] = told["data"]["result"]
        return found


@contextmanager
def recorded(samples: Sequence[str], folder: Path) -> Iterator[Recorded]:
    """A server that knows these lines of the OpenMetrics format, with their times, and nothing else."""
    text, data = folder / "recorded.txt", folder / "data"
    text.write_text("\n".join((*samples, "# EOF")) + "\n", encoding="utf-8")
    tool("tsdb", "create-blocks-from", "openmetrics", text, data)
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n", encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = shutil.which("prometheus")
    assert program is not None
    options = [f"--config.file={config}", f"--storage.tsdb.path={data}"]
    options.append(f"--web.listen-address=127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([program, *options], stdout=log, stderr=log)
        try:
            it = Recorded(port)
            wait_until(lambda: it.is_ready or server.poll() is not None)
            assert server.poll() is None, (folder / "log").read_text()
            yield it
        finally:
            server.terminate()
            server.wait()
