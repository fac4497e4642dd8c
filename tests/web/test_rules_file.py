"""Rules from a file: what can be said there, how mistakes are told, and what happens when it changes."""

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from tests.patience import wait_until
from tests.web.calls import OK, get, http_scope
from zae_limiter import Limit, RateLimiter
from zae_limiter.operate.manifest import ManifestError
from zae_limiter.testing import ManualClock
from zae_limiter.web import RateLimitMiddleware, Request, Rule, Rules
from zae_limiter.web.rules_file import FileRules, load_rules

GOOD = """
entity: {from: api_key, header: x-key, anonymous: guests}
rules:
  /health: {exempt: true}
  POST,PUT /v1/{model}/chat:
    resource: model-{model}
    cost: estimate
    entity: bearer
    usage: chat
    wait: 2.5
    on_error: settle
  /v1/*:
    cost: {rpm: 1, tpm: 500}
    limits:
      rpm: {capacity: 60}
      tpm: {capacity: 10_000}
    on_unavailable: allow
  /ws:
    resource: chat
    messages: {rpm: 1}
    entity: {id: everybody}
"""


def estimate(request: Request) -> dict[str, int]:
    return {"tpm": len(request.path)}


def chat(*_: Any) -> None:
    return None


GIVEN = {"estimate": estimate, "chat": chat}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def told(path: Path, text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        load_rules(written(path, text), GIVEN)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).split("\n")]


async def nothing() -> Any:
    raise AssertionError("nobody reads")


def test_what_a_file_says(tmp_path: Path) -> None:
    """It is what the same rules say in a program."""
    rules = load_rules(written(tmp_path / "rules.yaml", GOOD), GIVEN)
    health, model, api, socket = rules
    assert health == Rule("/health", exempt=True)
    assert (model.path, model.resource, model.cost, model.usage) == (
        *("/v1/{model}/chat", "model-{model}", estimate, chat),
    )
    assert (model.methods, model.wait, model.on_error) == ({"POST", "PUT"}, 2.5, "settle")
    limits = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)]
    assert api == Rule("/v1/*", cost={"rpm": 1, "tpm": 500}, limits=limits, on_unavailable="allow")
    assert (socket.entity, socket.messages, socket.cost) == ("everybody", {"rpm": 1}, {})
    scope = http_scope("/", headers={"x-key": "key-1", "authorization": "Bearer t-1"})
    assert callable(rules.entity)
    assert callable(model.entity)
    assert (rules.entity(Request(scope, nothing)), model.entity(Request(scope, nothing))) == ("key-1", "t-1")
    assert rules.entity(Request(http_scope("/"), nothing)) == "guests"


def test_json_says_the_same(tmp_path: Path) -> None:
    """And needs no parser but Python's."""
    whose = {"from": "client_address", "trusted": ["10.0.0.0/8"]}
    said = {"rules": {"/v1/*": {"resource": "api", "cost": {"rpm": 1}, "entity": whose}}}
    (rule,) = load_rules(written(tmp_path / "rules.json", json.dumps(said, indent="\t")))
    assert (rule.path, rule.resource, rule.cost) == ("/v1/*", "api", {"rpm": 1})
    (line,) = told(tmp_path / "rules.json", '{"rules": {\n  "/v1/*": {"exempt": 7}}}')
    assert line == "2:23: rules./v1/*.exempt: write true or false, not '7'"
    assert "not" in told(tmp_path / "rules.json", "{'rules")[0]


@pytest.mark.parametrize(
    ("entity", "header", "who"),
    [
        ("{from: claim, claim: sub}", {}, "u-1"),
        ("{from: client_address, trusted: '192.0.2.0/24, unix'}", {"x-forwarded-for": "9.9.9.9"}, "9.9.9.9"),
        ("{from: client_address, trusted: [192.0.2.0/24, unix]}", {"x-forwarded-for": "9.9.9.9"}, "9.9.9.9"),
        ("{from: client_address, v4_prefix: 24}", {}, "192.0.2.0/24"),
        ("{from: bearer, hashed: true}", {"authorization": "Bearer x"}, "sha256:2d711642b726b04401627ca9"),
    ],
)
def test_who_it_is(tmp_path: Path, entity: str, header: dict[str, str], who: str) -> None:
    """All that a program can say of it."""
    rules = load_rules(
        written(tmp_path / "rules.yaml", f"entity: {entity}\nrules: {{/x: {{cost: {{a: 1}}}}}}")
    )
    request = Request(http_scope("/", headers=header, state={"claims": {"sub": "u-1"}}), nothing)
    assert callable(rules.entity)
    assert str(rules.entity(request)).startswith(who)


MISTAKES = {
    "rules: {/x: {cost: {rpm: 1}}}": ["1:9: rules./x: say whose requests they are"],
    "rules: [1]": ["1:8: rules: expected a mapping from paths, found a list"],
    "entity: bearer": ["1:1: it has no rules"],
    "": [" the file is empty; a file that limits nothing says so: rules: {}"],
    "entity: bear\nrules: {/x: {cost: {rpm: 1}}}": ["1:9: entity: expected a name that the program gives"],
    "entity: {from: client_address, trusted: [unix, [a]]}\nrules: {/x: {cost: {rpm: 1}}}": [
        "1:48: entity.trusted: expected a name, found a list"
    ],
    "entity: bear\nrules: {}": ["1:9: entity: expected a name that the program gives"],
    "entity: {from: claim}\nrules: {}": ["1:9: entity: say which claim"],
    "entity: {from: bearer, header: x}\nrules: {}": ["1:32: entity: bearer has anonymous, hashed, and no"],
    "entity: {form: bearer}\nrules: {}": [
        "1:9: entity.from: say from where",
        "1:10: entity: unknown key 'form'",
    ],
    "entity: {from: client_address, trusted: 10.0.0.1/8}\nrules: {}": ["1:9: entity: trusted '10.0.0.1/8'"],
    "entity: bearer\nrules:\n  v1: {cost: {rpm: 1}}": ["3:3: rules.v1: path 'v1': begin with a slash"],
    "entity: bearer\nrules:\n  /a: {cost: {rpm: x}}": ["3:20: rules./a.cost.rpm: write a whole number"],
    "entity: bearer\nrules:\n  /a: {cost: x}": ["3:14: rules./a.cost: expected a name"],
    "entity: bearer\nrules:\n  /a: {}": ["3:3: rules./a: cost of '/a' None: pass amounts"],
    "entity: bearer\nrules:\n  /a: {costs: {rpm: 1}}": ["3:8: rules./a: unknown key 'costs'"],
    "entity: bearer\nrules:\n  /a: {cost: {rpm: 1}}\n  /a: {cost: {rpm: 1}}": [
        "4:3: rules: '/a' is given twice; the first is in line 3"
    ],
    "entity: bearer\nrules:\n  G@T /a: {cost: {rpm: 1}}": ["3:3: rules.G@T /a: methods 'G@T'"],
    "entity: bearer\nrules:\n  /a: {cost: {rpm: 1}, wait: soon, on_error: no}": [
        "3:30: rules./a.wait: write seconds such as 2.5",
        "3:46: rules./a.on_error: use refund, keep or settle",
    ],
    "entity: bearer\nrules:\n  /a: {limits: {rpm: {}}, cost: {rpm: 1}}": [
        "3:22: rules./a.limits.rpm: its capacity"
    ],
    "entity: bearer\nrules:\n  /a: {limits: {rpm: {capacity: 9}}, cost: {tpm: 1}}": [
        "3:3: rules./a: cost of '/a' {'tpm': 1}: no limit is called 'tpm'; use 'rpm'"
    ],
    "entity: bearer\nrules:\n  '': {exempt: true}": ["3:3: rules.: path '': begin with a slash"],
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_have_a_place(tmp_path: Path, text: str) -> None:
    """All of them at once, each with line, column and key."""
    found, said = told(tmp_path / "rules.yaml", text), MISTAKES[text]
    assert len(found) == len(said), found
    for line, start in zip(found, said, strict=True):
        assert line.startswith(start)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It is needed when the program starts."""
    with pytest.raises(FileNotFoundError):
        Rules.from_file(tmp_path / "none.yaml")


ONE = "entity: {id: key}\nrules: {/one: {cost: {rpm: 1}}}"
TWO = "entity: {id: key}\nrules: {/one: {cost: {rpm: 1}}, /two: {cost: {rpm: 1}}}"


def test_a_file_that_changes(tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """It is read again; what is broken, or gone, is told once and the good rules go on."""
    path = written(tmp_path / "rules.yaml", ONE)
    rules = FileRules(path, world=clock.world)
    assert [rule.path for rule in rules] == ["/one"]
    written(path, TWO)
    assert len(rules.current()) == 1  # it is not time yet
    clock.advance(1)
    rules.current()  # who asks does not wait for it
    wait_until(lambda: len(rules) == 2)
    assert rules.match("GET", "/two") is not None
    for broken in ("rules: [", None):
        caplog.clear()
        path.unlink() if broken is None else written(path, broken)
        for _ in range(3):
            rules.look()
        assert len(rules.current()) == 2
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
    written(path, ONE)
    rules.look()
    assert len(rules.current()) == 1


def test_a_file_is_looked_at_once_a_second(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many requests there are, and never by who asks."""
    rules = FileRules(written(tmp_path / "rules.yaml", ONE), world=clock.world)
    looks: list[int] = []
    monkeypatch.setattr(rules, "look", lambda: looks.append(clock.now_ms))
    stats: list[Any] = []
    monkeypatch.setattr(os, "stat", lambda *given: stats.append(given))
    for _ in range(100):
        rules.current()
        clock.now_ms += 100
    monkeypatch.undo()
    wait_until(lambda: len(looks) == 9)
    assert stats == []


async def test_a_middleware_goes_by_the_file(limiter: RateLimiter, tmp_path: Path) -> None:
    """With its rules and its entity."""
    path = written(
        tmp_path / "rules.yaml", "entity: {id: key}\nrules: {/v1/*: {resource: api, cost: {rpm: 3}}}"
    )
    await limiter.set_system_defaults([Limit.per_minute("rpm", 10)])
    app = RateLimitMiddleware(OK, limiter=limiter, rules=Rules.from_file(path))
    assert (await get(app, "/v1/x")).left() == 7
