"""The server as processes: workers that die, a supervisor that dies, an end that is asked for, clients"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from tests.patience import wait_until
from tests.server.serving import Serving, serving
from zae_limiter.server.config import ServerConfig
from zae_limiter.server.run import bound_socket
from zae_limiter.server.supervisor import Supervisor, back_off_seconds

LIMITS = {"rpm": {"capacity": 1000, "refill_amount": 1, "refill_period": 3600}}
SAID = {"entity": "e", "resource": "r", "consume": {"rpm": 1}, "limits": LIMITS}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def acquired(server: Serving, key: str, said: object = SAID) -> httpx.Response:
    headers = {**server.headers, "Idempotency-Key": key}
    return httpx.post(f"{server.url}/v1/acquire", json=said, headers=headers, timeout=600)


def left(server: Serving) -> int:
    asked = {"entity": "e", "resource": "r", "limits": json.dumps(LIMITS)}
    answer = httpx.get(f"{server.url}/v1/available", params=asked, headers=server.headers, timeout=600)
    return int(answer.json()["available"]["rpm"])


def reached(server: Serving, within_seconds: float = 600) -> bool:
    try:
        return httpx.get(f"{server.url}/readyz", timeout=within_seconds).status_code == 200
    except httpx.TransportError:
        return False


def test_workers_that_are_killed(tmp_path: Path) -> None:
    """All of them at once: others take their place, the lease is there, and is counted once."""
    with serving(f"sqlite:///{tmp_path}/l.db", "--workers", "2") as server:
        first = acquired(server, "one")
        wait_until(lambda: len(server.workers()) == 2)
        before = server.workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(server.workers()) == 2 and not set(server.workers()) & set(before))
        wait_until(lambda: reached(server))
        again = acquired(server, "one")
        assert again.json()["lease"] == first.json()["lease"]
        assert again.headers["idempotency-replayed"] == "true"
        assert left(server) == 999


def test_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """Its workers end by themselves."""
    with serving(f"sqlite:///{tmp_path}/l.db", "--workers", "2") as server:
        wait_until(lambda: len(server.workers()) == 2)
        workers = server.workers()
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in workers))


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_an_end_that_is_asked_for(tmp_path: Path, workers: str, sign: signal.Signals) -> None:
    """A request under way is answered as ever, although it waits; nothing new is accepted, and all end well.

    It is known to be under way, whichever worker has it, for its client is told to go on with the body.
    """
    limits = {"rps": {"capacity": 1, "refill_amount": 1, "refill_period": 2}}
    said = {"entity": "e", "resource": "w", "consume": {"rps": 1}, "limits": limits, "wait": 5}
    words = ("--workers", workers, "--shutdown-seconds", "600")
    with serving(f"sqlite:///{tmp_path}/l.db", *words) as server:
        assert acquired(server, "first", said).status_code == 200
        headers = {**server.headers, "Expect": "100-continue"}
        body = httpx.Request("POST", f"{server.url}/v1/acquire", json=said, headers=headers)
        head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.settimeout(600)
            answer = connection.makefile("rb")
            connection.sendall(f"POST /v1/acquire HTTP/1.1\r\n{head}\r\n".encode())
            assert b" 100 " in answer.readline()
            server.process.send_signal(sign)
            # Who comes when all have stopped to listen, and the socket is still there, has no answer at all.
            wait_until(lambda: not reached(server, 2))
            connection.sendall(body.content)
            told = answer.read()
        assert told.lstrip().startswith(b"HTTP/1.1 200 "), told
        assert b'"lease"' in told
        assert server.process.wait(600) == 0


def test_two_times_ctrl_c(tmp_path: Path) -> None:
    """The second one does not wait for whoever waits for a turn."""
    limits = {"parallel": {"capacity": 1, "hold": "1h"}}
    said = {"entity": "e", "resource": "w", "consume": {"parallel": 1}, "limits": limits}
    with serving(f"sqlite:///{tmp_path}/l.db", "--workers", "2", "--shutdown-seconds", "600") as server:
        assert acquired(server, "first", said).status_code == 200
        headers = {**server.headers, "Connection": "close"}
        body = httpx.Request("POST", f"{server.url}/v1/acquire", json={**said, "wait": 20}, headers=headers)
        head = "".join(f"{name}: {value}\r\n" for name, value in body.headers.items())
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.settimeout(600)
            connection.sendall(f"POST /v1/acquire HTTP/1.1\r\n{head}\r\n".encode() + body.content)
            wait_until(lambda: reached(server))  # which is behind it

            def ended_by_one_more() -> bool:
                server.process.send_signal(signal.SIGINT)
                return server.process.poll() is not None

            wait_until(ended_by_one_more)
            with suppress(ConnectionResetError):
                assert connection.makefile("rb").read() == b""


async def test_a_machine_that_has_no_room_for_a_worker(tmp_path: Path) -> None:
    """What cannot be started now is started later, and the server lives on."""
    failures = [OSError(errno.EAGAIN, "no"), OSError(errno.EMFILE, "no")]

    class Unlucky(Supervisor):
        async def _start(self) -> Process:
            if failures:
                raise failures.pop()
            return await super()._start()

    served = ServerConfig(store=f"sqlite:///{tmp_path}/l.db", port=0)
    with bound_socket(served) as listening:
        supervisor = Unlucky(served, listening, lambda *_: supervisor._ending.set())
        await asyncio.wait_for(supervisor.run(), 600)
    assert not failures
    assert supervisor._was_ready


def test_a_worker_that_dies_for_a_day() -> None:
    """It is tried at least every ten seconds, however often that was."""
    assert [back_off_seconds(deaths) for deaths in (1, 2, 10_000)] == [0.1, 0.2, 10]


def sent(server: Serving, data: bytes) -> bytes:
    """What comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(600)
        connection.sendall(data)
        try:
            return connection.makefile("rb").read()
        except ConnectionError:
            return b""


def test_requests_that_are_none(tmp_path: Path) -> None:
    """Heads that are too large, lengths that contradict, names with line breaks: refused, and it lives on."""
    with serving(f"sqlite:///{tmp_path}/l.db") as server:
        end = b"Connection: close\r\n\r\n"
        get = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
        assert b" 200 " in sent(server, get + end)
        large = b"X: " + b"a" * 100_000 + b"\r\n"
        for wrong in (
            get + large + end,
            get.replace(b"Host: x", b"Host: x\r\nContent-Length: 1\r\nContent-Length: 2") + end,
            get.replace(b"/healthz", b"/a\rb") + end,
            b"\x16\x03\x01\x00\xa5\x01\x00\x00" + b"\r\n\r\n",
        ):
            assert sent(server, wrong).split(b"\r\n")[0].split(b" ")[1:2] in ([b"400"], [b"431"], []), wrong[
                :60
            ]
        split = sent(server, b"GET /x%0d%0aSet-Cookie:%20a HTTP/1.1\r\nHost: x\r\n" + end)
        assert b" 404 " in split.split(b"\r\n")[0]
        assert b"set-cookie" not in split.lower()
        assert b" 200 " in sent(server, get + end)


def test_lengths_of_two_kinds(tmp_path: Path) -> None:
    """A body may not say how long it is in two ways: neither the limit nor what is in front is led around."""
    with serving(f"sqlite:///{tmp_path}/l.db") as server:
        body = b" " * 100_000 + json.dumps(SAID).encode()
        head = f"POST /v1/acquire HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {server.token}\r\n".encode()
        head += b"Content-Type: application/json\r\n"
        for lengths in (
            b"Content-Length: 10\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        ):
            chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
            assert sent(server, head + lengths + b"\r\n" + chunks)[:13] in (b"HTTP/1.1 400 ", b"")
        assert left(server) == 1000


def test_clients_that_do_not_read(tmp_path: Path) -> None:
    """They are dropped after a while, and nothing of them is left under way."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv:\n    import zae_limiter.server.connections as c\n"
        "    c.UNREAD_SECONDS_MAX = 0.2\n"
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    with serving(f"sqlite:///{tmp_path}/l.db", env={"PYTHONPATH": path}) as server, ExitStack() as stack:
        wait_until(lambda: reached(server))
        ended, dropped = select.poll(), set[int]()
        for _ in range(8):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            connection.connect(("127.0.0.1", server.port))
            connection.setblocking(False)
            with suppress(OSError):
                for _ in range(4000):
                    connection.send(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
            ended.register(connection, 0)  # tells of a connection that was broken off, and of nothing else

        def all_dropped() -> bool:
            dropped.update(number for number, _ in ended.poll(0))
            return len(dropped) == 8

        wait_until(all_dropped)
        assert reached(server)


def test_more_connections_than_a_process_begins_with(tmp_path: Path) -> None:
    """The server raises its own limit of open files: idle connections are no reason not to answer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir("/dev/fd"))) + 64  # who starts it has files of its own open
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        try:
            server = stack.enter_context(serving(f"sqlite:///{tmp_path}/l.db"))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(most + 36):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        assert reached(server)
        server.process.terminate()
        assert server.process.stderr is not None
        assert "Too many open files" not in server.process.stderr.read()


def test_numbers_of_all_workers(tmp_path: Path) -> None:
    """Whichever worker is asked answers for the others, too."""
    with serving(f"sqlite:///{tmp_path}/l.db", "--workers", "2") as server:

        def all_answer() -> bool:
            text = httpx.get(f"{server.url}/metrics", headers=server.headers, timeout=600).text
            return all(f'worker="{place}"' in text for place in range(2))

        wait_until(all_answer)


def test_a_client_that_never_says_what_it_wants(tmp_path: Path) -> None:
    """A connection without the head of a request is closed."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nif 'serve' in sys.argv:\n    import zae_limiter.server.connections as c\n"
        "    c.HEAD_SECONDS_MAX = 0.2\n"
    )
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    with serving(f"sqlite:///{tmp_path}/l.db", env={"PYTHONPATH": path}) as server:
        for begun in (b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"):
            assert sent(server, begun) == b""
        assert reached(server)


def test_an_environment_without_the_extra(tmp_path: Path) -> None:
    """It says what to install, and nothing else."""
    (tmp_path / "uvicorn.py").write_text("raise ImportError('not here')\n")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    words = [sys.executable, "-m", "zae_limiter", "serve", "--store", "memory://", "--port", "0"]
    ran = subprocess.run(
        words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "install this package with its extra: server" in ran.stderr
    assert "Traceback" not in ran.stderr
