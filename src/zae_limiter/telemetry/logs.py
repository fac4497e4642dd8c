"""Records of a log as JSON, one object a line, with fields whose names stay.

Sentences of this package may name entities. So unless that is asked for, only the words of a sentence that
are always the same are written, and the fields that name nobody.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

FIELDS = ("event", "at_ms", "resource", "limits", "retry_after_ms", "count")
"""What records of this package have beside their message, if they have it."""


class JsonFormatter(logging.Formatter):
    """Makes one line of JSON of each record.

    >>> record = logging.LogRecord("zae_limiter", logging.INFO, "", 0, "of %s", ("key-1",), None)
    >>> json.loads(JsonFormatter().format(record))["message"]
    'of %s'
    """

    def __init__(self, *, with_entities: bool = False) -> None:
        super().__init__()
        self._with_entities = with_entities

    def format(self, record: logging.LogRecord) -> str:
        """One line of JSON."""
        is_ours = record.name.partition(".")[0] == "zae_limiter"
        hides = is_ours and not self._with_entities
        # What an event says of itself names nobody unless it was asked to.
        is_plain = record.name == "zae_limiter.events" and not hasattr(record, "entity_id")
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.msg if hides and not is_plain else record.getMessage(),
        }
        fields = (*FIELDS, "entity_id") if self._with_entities else FIELDS
        for name in fields:
            value = getattr(record, name, None)
            if value is not None:
                told[name] = value
        if record.exc_info and record.exc_info[0] is not None:
            told["error"] = record.exc_info[0].__name__ if hides else self.formatException(record.exc_info)
        return json.dumps(told, default=str)
