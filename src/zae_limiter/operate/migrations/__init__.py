"""Tables of older shapes, brought up to date in place.

Reading order: ``shapes``, ``namespaced`` and ``kinds`` (what older records look like), ``translation``,
``buckets`` and ``history`` (what becomes of them), ``moving`` (how a record is moved exactly once), ``state``
(who may use the table meanwhile), ``migration`` (the passes). ``scanning`` and ``indexes`` are what they need
of a store beside the waist.
"""

from .migration import Migration, MigrationReport, PassProgress, Survey
from .scanning import scan_of
from .shapes import Finding, Kind
from .state import MigrationStage, State

__all__ = [
    "Finding",
    "Kind",
    "Migration",
    "MigrationReport",
    "MigrationStage",
    "PassProgress",
    "State",
    "Survey",
    "scan_of",
]
