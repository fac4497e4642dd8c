"""The aggregator: usage snapshots, healthy buckets and an audit archive from a store's changes.

Reading order: ``changes`` (what a record tells), ``usage`` (rows as sets of changes), ``buckets`` (refill
and shards), ``archiver``, ``processor`` (one batch), and then who brings the batches: ``handler`` on Lambda,
``runner`` anywhere else. It knows the limiter's records but not the limiter.
"""

from typing import TYPE_CHECKING

from zae_limiter.established import former_names

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

if not TYPE_CHECKING:  # which is to see every name that is missing
    __getattr__ = former_names(__name__)
