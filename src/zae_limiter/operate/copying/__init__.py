"""Namespaces, carried from one store to another through the waist alone.

Reading order: ``carrying`` (what an item becomes in another store), ``arrival`` (what the target has in the
place of a namespace, and who may use it meanwhile), ``copy`` (the passes). None of it knows which stores
there are: what they can do says ``capabilities``.
"""

from .arrival import Arrival
from .copy import Copy, CopyReport, Store

__all__ = ["Arrival", "Copy", "CopyReport", "Store"]
