"""The aggregator: usage snapshots, healthy buckets and an audit archive from a store's changes.

Reading order: ``changes`` (what a record tells), ``usage`` (rows as sets of changes), ``buckets`` (refill
and shards), ``archiver``, ``processor`` (one batch), and then who brings the batches: ``handler`` on Lambda,
``runner`` anywhere else. It knows the limiter's records but not the limiter.
"""

from .changes import FILTERS, Change, Expired, Span, change_of
from .processor import AggregatorSettings, Tally, process_changes, process_stream_records

__all__ = [
    "FILTERS",
    "Change",
    "Expired",
    "AggregatorSettings",
    "Span",
    "Tally",
    "change_of",
    "process_changes",
    "process_stream_records",
]
