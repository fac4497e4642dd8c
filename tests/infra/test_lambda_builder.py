"""The package of the aggregator: the same bytes everywhere, and enough to run where only botocore is."""

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.aggregator.images import NOW, Step, history, records_of
from tests.dynamodb.tables import driver, make_table
from tests.engines import dynamodb_local
from tests.patience import PATIENCE_SECONDS
from zae_limiter.infra.lambda_builder import HANDLER, build, code_sha256, describe, needed_sources
from zae_limiter.version import client_version

SIZE_MAX = 400_000
"""As the guide says."""

RUNTIME = ("botocore", "dateutil", "jmespath", "six", "urllib3")
"""What Lambda's Python has for us: botocore and what it needs."""

RUN = """
import importlib, importlib.metadata, json, sys
event = json.load(sys.stdin)
answer = getattr(importlib.import_module(sys.argv[1].rpartition(".")[0]), "handler")(event, None)
found = sorted({m.__file__ for n, m in sys.modules.items() if n.startswith("zae_limiter")})
print(json.dumps([answer, importlib.metadata.version("zae-limiter"), found]))
"""

IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, error.name)
"""


@pytest.fixture(scope="module")
def package() -> bytes:
    return build()


@pytest.fixture
def task(package: bytes, tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has the package and what Lambda has, and nothing of this one."""
    code, runtime = tmp_path / "task", tmp_path / "runtime"
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        archive.extractall(code)
    runtime.mkdir()
    for name in RUNTIME:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        source = origin.parent if origin.name == "__init__.py" else origin
        (runtime / source.name).symlink_to(source)
    kept = {name: value for name, value in os.environ.items() if name.startswith("AWS_") or name == "PATH"}
    return kept | {"PYTHONPATH": f"{code}{os.pathsep}{runtime}", "PYTHONDONTWRITEBYTECODE": "1"}


def run(task: dict[str, str], program: str, *arguments: str, given: str = "") -> str:
    command = [sys.executable, "-S", "-W", "error", "-c", program, *arguments]
    done = subprocess.run(
        command, input=given, env=task, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_function_runs_on_what_lambda_has(task: dict[str, str], tmp_path: Path) -> None:
    """It counts usage in a table, from its own files alone, and knows its version."""
    table = make_table()
    task |= {
        "TABLE_NAME": table,
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL_DYNAMODB": dynamodb_local.endpoint(),
    }
    event = json.dumps({"Records": records_of(history([Step(3, NOW), Step(4, NOW)]))})
    answer, version, loaded = json.loads(run(task, RUN, HANDLER, given=event))
    assert answer["batchItemFailures"] == []
    assert version == client_version()
    assert loaded
    assert [file for file in loaded if not file.startswith(str(tmp_path))] == []
    key = {"PK": {"S": "ns/ENTITY#user-1"}, "SK": {"S": "#USAGE#gpt-4#2023-11-14T22:00:00Z"}}
    assert driver().get_item(TableName=table, Key=key)["Item"]["tpm"] == {"N": "7"}


def test_every_module_in_the_package_can_be_imported(task: dict[str, str], package: bytes) -> None:
    """Also those which are imported late; only the driver for event loops is not there."""
    files = [name for name in describe(package).files if name.endswith(".py")]
    modules = [name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in files]
    missing = {tuple(line.split()) for line in run(task, IMPORT_ALL, *modules).splitlines()}
    assert missing == {("zae_limiter.backends.dynamodb.aioboto", "aiobotocore")}


def test_the_same_sources_make_the_same_bytes(package: bytes) -> None:
    """In another process with another hash seed, time zone and mask as well."""
    program = "import os, sys; os.umask(0o077); from zae_limiter.infra import lambda_builder as b; "
    program += "sys.stdout.write(b.code_sha256(b.build()))"
    environment = os.environ | {"PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == code_sha256(package)


def test_the_package_is_small_and_plain(package: bytes) -> None:
    """Sources in order, readable by everybody, of no particular time; and the version."""
    assert len(package) < SIZE_MAX
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        entries = archive.infolist()
    assert [entry.filename for entry in entries] == sorted(entry.filename for entry in entries)
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.external_attr >> 16 for entry in entries} == {0o100644}
    others = [entry.filename for entry in entries if not entry.filename.endswith(".py")]
    assert others == [f"zae_limiter-{client_version()}.dist-info/METADATA"]
    tops = {entry.filename.partition("/")[0] for entry in entries}
    assert tops - {others[0].partition("/")[0]} == {"zae_limiter", "zae_limiter_aggregator"}


def test_what_only_people_use_is_left_out(package: bytes) -> None:
    """A change of the command line or of the template makes no new function."""
    files = describe(package).files
    for left_out in ("cli/", "testing/", "infra/", "operate/migrations/", "operate/manifest/"):
        assert find_spec(f"zae_limiter.{left_out.rstrip('/').replace('/', '.')}") is not None
        assert not [name for name in files if name.startswith(f"zae_limiter/{left_out}")]


def test_a_package_is_described_as_lambda_describes_it(package: bytes) -> None:
    """The hash is the one that a function answers with."""
    info = describe(package)
    assert info.size == len(package)
    assert info.code_sha256 == base64.b64encode(hashlib.sha256(package).digest()).decode()
    assert info.version == client_version()
    assert info.handler == HANDLER
    assert "zae_limiter_aggregator/handler.py" in info.files
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("index.py", "")
    assert describe(other.getvalue()).version is None


def test_imports_of_every_form_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative, late, and names that may be modules; what is not ours is not taken."""
    sources = {
        "zae_limiter/a.py": "import other, zae_limiter.b\nfrom . import c, no_module\nfrom .d import thing",
        "zae_limiter/b.py": "def late():\n    from .e.f import x\n    from zae_limiter.infra import y",
        "zae_limiter/e/f.py": "from ..g import x\nfrom ... import nothing",
        "zae_limiter/infra/__init__.py": "from .. import h",
        **{f"zae_limiter/{name}.py": "" for name in ("__init__", "c", "d", "e/__init__", "g", "h")},
        "other.py": "",
    }
    for path, source in sources.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(source)
    monkeypatch.setattr("zae_limiter.infra.lambda_builder.ROOT", tmp_path)
    found = needed_sources("zae_limiter.a")
    names = ("__init__", "a", "b", "c", "d", "e/__init__", "e/f", "g")
    assert sorted(found) == [f"zae_limiter/{name}.py" for name in names]
    assert found["zae_limiter/b.py"].decode() == sources["zae_limiter/b.py"]
