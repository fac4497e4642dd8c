"""Tools for testing what is built on this package.

``ManualClock`` gives a ``World`` whose time stands still until it is told otherwise.
``RecordingBackend`` counts what a store is asked. ``FaultyBackend`` loses requests and replies on
command.
"""

from .clock import ManualClock
from .stores import Fault, FaultyBackend, RecordingBackend

__all__ = ["Fault", "FaultyBackend", "ManualClock", "RecordingBackend"]
