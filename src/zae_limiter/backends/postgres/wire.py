"""One connection: a statement goes out, its results come back. Knows libpq, and nothing of waiting.

Every statement is a transaction of its own, sent without a name and with its arguments beside it, so
nothing of a session is needed: a pooler may give each one to another server process. A statement is sent
once. Whether an answer tells what happened is decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import Error as DriverError
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus

from ..pool import arrivals_of
from .trouble import READ_ONLY, LostReply, RolledBack, Trouble, discreet

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult


class Wire:
    """A connection that is made, and the statement that is under way on it."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw  # which closes itself when nobody has it any more
        self.pgconn: PGconn = raw.pgconn
        self.descriptor: int = raw.pgconn.socket
        self._arrivals = arrivals_of(self.descriptor)
        self._results: list[PGresult] = []
        self.usable: bool = True

    def send(self, statement: bytes, arguments: list[bytes]) -> bool:
        """Send a statement; whether all of it is on its way."""
        self._results = []
        if self.pgconn.status != ConnStatus.OK:
            self.usable = False
            raise LostReply("the connection was closed before it was used", ambiguous=False)
        try:
            self.pgconn.send_query_params(statement, arguments)
            return not self.pgconn.flush()
        except DriverError as error:
            raise self._lost(error) from error

    def flush(self) -> bool:
        try:
            return not self.pgconn.flush()
        except DriverError as error:
            raise self._lost(error) from error

    def receive(self) -> bool:
        """Take in what has arrived; whether the answer is whole."""
        try:
            self.pgconn.consume_input()
            while not self.pgconn.is_busy():
                result = self.pgconn.get_result()
                if result is None:
                    return True
                self._results.append(result)
        except DriverError as error:
            raise self._lost(error) from error
        return False

    def answer(self) -> bytes:
        """The one value that the answer holds, once that is whole."""
        results, self._results = self._results, []
        for result in results:
            if result.status != ExecStatus.TUPLES_OK:
                raise self._trouble(result)
        idle = self.pgconn.transaction_status == TransactionStatus.IDLE
        value = results[0].get_value(0, 0) if len(results) == 1 and results[0].ntuples == 1 else None
        if value is None or not idle:
            self.usable = False
            raise LostReply("the answer is none that was asked for", ambiguous=True)
        return bytes(value)

    def is_quiet(self) -> bool:
        """Whether it can be used, and nothing has come although nothing was asked."""
        return self.usable and not self._arrivals(0)

    def close(self) -> None:
        self.usable = False
        self.pgconn.finish()

    def _trouble(self, result: PGresult) -> Trouble:
        code = _field(result, DiagnosticField.SQLSTATE)
        severity = _field(result, DiagnosticField.SEVERITY_NONLOCALIZED)
        message = discreet(_field(result, DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message())
        if severity != "ERROR" or not code:
            self.usable = False
            return LostReply(f"{message} ({code or 'no code'})", ambiguous=True)
        if code == READ_ONLY or self.pgconn.transaction_status != TransactionStatus.IDLE:
            self.usable = False
        return RolledBack(code, message)

    def _lost(self, error: Exception) -> LostReply:
        """A connection that broke; what it still had to say may tell more than that it did."""
        self.usable = False
        return LostReply(discreet(str(error)), ambiguous=True)


def _field(result: PGresult, field: DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")
