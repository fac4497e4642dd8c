"""Tools for testing what is built on this package.

``ManualClock`` gives a ``World`` whose time stands still until it is told otherwise.
``RecordingBackend`` counts what a store is asked. ``FaultyBackend`` loses requests and replies on
command. ``simulate`` tells what limits would do to some traffic.
"""

from .stores import Fault, FaultyBackend, RecordingBackend
from .traffic import Answer, ManualClock, simulate

__all__ = ["Answer", "Fault", "FaultyBackend", "ManualClock", "RecordingBackend", "simulate"]
