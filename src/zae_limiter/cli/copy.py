"""``zae-limiter copy``: carry namespaces from one store to another."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import click
from click.exceptions import Exit
from rich.table import Table

from ..backends.change_log import log_of
from ..exceptions import ValidationError, without_secrets
from ..models import Namespace
from ..naming import validate_namespace
from ..operate.copying import Arrival, Copy, CopyReport, Store
from ..runtime.colour import run_sync
from ..settings import Settings
from .errors import DIFFERENT, NOT_FOUND, Failure
from .nouns import option, verb
from .output import Output, counted, grid
from .progress import Bar
from .session import Missing, Session, confirmed, make_sure, resumable, with_output
from .text import printable

TIMEOUT_MS = 30_000
"""For hundreds of writes at once; nobody waits for an acquire here."""

CLOCKS_APART_MS = 2_000
SHOWN = 20


@verb("copy", click.argument("source"), click.argument("target"))
@option("--namespace -N names", "Copy this one. May be repeated.  [default: all]", multiple=True)
@option("--as renamed", "Call it this in the target.", metavar="NAME")
@option("--in-advance", "Copy while the source is in use, and leave it closed in the target.", is_flag=True)
@option("--overwrite", "Replace what the target has under its name or id.", is_flag=True)
@option("--verify", "Compare every item, and change nothing.", is_flag=True)
@option("--dry-run", "Say what would be copied, and change nothing.", is_flag=True)
@confirmed
@with_output
def copy(
    output: Output, source: str, target: str, names: tuple[str, ...], renamed: str | None, **how: bool
) -> None:
    """Copy namespaces from one store to another, with all records and balances.

    \b
    zae-limiter copy sqlite:///limits.db postgresql://limits@db/limits
    zae-limiter copy sqlite:///limits.db 'dynamodb://limits?region=eu-west-1' -N default

    Every item is compared in the end, and only when all are the same is the namespace opened in the target.
    Stop it whenever you like: it goes on where it stopped. The exit code is 5 if something differs.
    """
    for name in (*names, *(() if renamed is None else (renamed,))):
        validate_namespace(name)
    if renamed is not None and len(names) != 1:
        raise click.UsageError("--as renames one namespace; say which one with --namespace")
    if how["verify"] and (how["overwrite"] or how["in_advance"]):
        raise click.UsageError("--verify changes nothing; leave out --overwrite and --in-advance")
    missing = Missing.REFUSED if how["verify"] else Missing.IMAGINED if how["dry_run"] else Missing.MADE
    sessions = [_session(url, output, what) for url, what in ((source, Missing.REFUSED), (target, missing))]
    _check_apart(*sessions)
    try:
        _check_names(sessions[0], names)
        CopyCommand(output, sessions, renamed, how).run(names)
    finally:
        for session in sessions:
            session.close()


def _session(url: str, output: Output, missing: Missing) -> Session:
    if url.startswith("memory:"):
        raise Failure(f"{url} ends with this command; name a store that stays, such as sqlite:///limits.db")
    settings: Settings = {"store": url, "stack": None, "region": None, "endpoint_url": None}
    settings["timeout_ms"] = TIMEOUT_MS
    return Session(settings, None, output, missing)


def _check_apart(source: Session, target: Session) -> None:
    source.must_exist()
    files = [None if one._file is None else one._file.resolve() for one in (source, target)]
    if source.url == target.url or (files[0] is not None and files[0] == files[1]):
        raise click.UsageError("source and target are the same store")


def _check_names(source: Session, names: Sequence[str]) -> None:
    """Before the target is touched."""
    for name in names:
        if source.registry.get_namespace(name) is None:
            where = without_secrets(source.url)
            there = f"zae-limiter namespace list --store {quote(where)}"
            raise Failure(f"namespace {name!r} does not exist in {where}", there, NOT_FOUND)


class CopyCommand:
    """What one command does to the namespaces that it was given, one after another."""

    def __init__(
        self, output: Output, sessions: Sequence[Session], renamed: str | None, how: dict[str, bool]
    ) -> None:
        self._output, (self._source, self._target) = output, sessions
        self._renamed, self._how = renamed, how
        self._writes = not (how["verify"] or how["dry_run"])
        source, target = map(_store, sessions)
        self._bar = Bar(source.world.ticks_ms)
        self._copy = Copy(source, target, tell=self._bar.show)
        self._apart_ms = target.world.now_ms() - source.world.now_ms()

    def run(self, names: Sequence[str]) -> None:
        run_sync(self._copy.check(write=self._writes))
        chosen = run_sync(self._copy.namespaces(names))
        if not chosen:
            raise Failure(f"there is no namespace in {without_secrets(self._source.url)}")
        arrivals = [run_sync(self._copy.look(space, self._renamed)) for space in chosen]
        if self._how["dry_run"]:
            self._plan(arrivals)
            return
        if self._writes:
            for arrival in arrivals:
                arrival.check(overwrite=self._how["overwrite"])
            self._ask(arrivals)
            self._warn(chosen)
        reports = []
        with resumable(self._target), self._bar:
            for arrival in arrivals:
                run_sync(self._copy.survey(arrival.space))
                reports.append((arrival, self._copied(arrival)))
        self._tell(reports)

    def _copied(self, arrival: Arrival) -> CopyReport:
        if not self._writes:
            return run_sync(self._copy.verify(arrival))
        how = {name: self._how[name] for name in ("overwrite", "in_advance")}
        return run_sync(self._copy.carry(arrival, **how))

    def _ask(self, arrivals: Sequence[Arrival]) -> None:
        lost = [one.name for one in arrivals if one.here is not None and not one.is_begun]
        if self._how["overwrite"] and lost:
            where = without_secrets(self._target.url)
            make_sure(self._how["yes"], f"Replace {', '.join(map(repr, lost))} in {where}?")

    def _warn(self, chosen: Sequence[Namespace]) -> None:
        if abs(self._apart_ms) > CLOCKS_APART_MS:
            told = f"the clock of the target is {abs(self._apart_ms) / 1000:.0f} s"
            way = "ahead: buckets refill by so much at once" if self._apart_ms > 0 else "behind"
            self._output.note(f"warning: {told} {way}; see docs/moving.md")
        if not self._how["in_advance"]:
            for space in chosen:
                if not run_sync(self._copy.is_switched_off(space)):
                    self._output.remark(
                        f"namespace {space.namespace_name!r} is not switched off in the source: "
                        "what is used there from now on does not come along"
                    )
        if self._is_behind():
            self._output.remark(
                "some usage of the source is not counted yet, and only the source can count it: "
                f"zae-limiter aggregate --once --store {without_secrets(self._source.url)}"
            )

    def _is_behind(self) -> bool:
        try:
            log = log_of(self._source.connection.backend)
        except ValidationError:  # nobody can tell
            return False
        try:
            return log.waits()
        finally:
            log.close()

    # What is said about it.

    def _plan(self, arrivals: Sequence[Arrival]) -> None:
        data, rows = [], []
        for arrival in arrivals:
            items = run_sync(self._copy.survey(arrival.space))
            told = _state(arrival)
            about = {"namespace": arrival.space.namespace_name, "as": arrival.name, "items": items.total()}
            data.append({**about, "kinds": dict(sorted(items.items())), "target": told})
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(items.items()))
            rows.append((arrival.name, f"{items.total():,}", kinds, told))
        columns = ["namespace", "items", "of which", "in the target"]
        self._output.show({"dry_run": True, "namespaces": data}, lambda: grid(columns, rows))

    def _tell(self, reports: Sequence[tuple[Arrival, CopyReport]]) -> None:
        self._output.show(
            {
                "source": without_secrets(self._source.url),
                "target": without_secrets(self._target.url),
                "namespaces": [_data(arrival, report) for arrival, report in reports],
            },
            lambda: _table(reports),
        )
        if not any(report.different for _, report in reports):
            return
        if not self._output.is_json:
            for _, report in reports:
                _list(report)
        if not self._writes:
            raise Exit(DIFFERENT)
        if any(report.different and report.is_open for _, report in reports):
            message = "the target has the namespace with other contents, and nothing was changed"
            raise Failure(message, "--overwrite makes it what the source has", DIFFERENT)
        if not self._how["in_advance"]:
            raise Failure(
                "the source was changed while it was copied, so the target stays closed",
                "switch it off (zae-limiter disable --reason moving), let leases end, and run this again",
                DIFFERENT,
            )


def _store(session: Session) -> Store:
    connection = session.connection
    return Store(connection.backend, connection.world, without_secrets(session.url))


def _state(arrival: Arrival) -> str:
    if arrival.is_begun:
        return "begun before"
    if arrival.here is not None:
        return "there already" if arrival.is_there else arrival.here.status.value
    if arrival.other is not None:
        return "an empty one of that name" if arrival.named_is_empty else "another one has the name"
    return "nothing"


def _data(arrival: Arrival, report: CopyReport) -> dict[str, Any]:
    return {
        "namespace": arrival.name,
        "id": arrival.space.namespace_id,
        **{name: getattr(report, name) for name in ("items", "written", "changed", "removed", "different")},
        "differences": [{**key._asdict(), "how": how} for key, how in report.differences.items()],
        "open": report.is_open,
    }


def _table(reports: Sequence[tuple[Arrival, CopyReport]]) -> Table:
    columns = ["namespace", "items", "written", "changed", "removed", "different", "in the target"]
    rows = []
    for arrival, report in reports:
        counts = (report.items, report.written, report.changed, report.removed, report.different)
        rows.append(
            (arrival.name, *(f"{count:,}" for count in counts), "open" if report.is_open else "closed")
        )
    return grid(columns, rows)


def _list(report: CopyReport) -> None:
    """Each on a line of its own, however long: whoever looks for an item needs its whole key."""
    shown = list(report.differences.items())[:SHOWN]
    for key, how in shown:
        click.echo(printable(f"{key.partition} {key.sort} {how}"))
    if report.different > len(shown):
        click.echo(f"and {counted(report.different - len(shown), 'other item')}")
