"""Tools for testing what is built on this package, and for breaking the package itself.

``ManualClock`` gives a ``World`` whose time stands still until it is told otherwise.
``RecordingBackend`` counts what a store is asked. ``FaultyBackend`` loses requests and replies on
command. The simulation runs many clients of one store in one thread, every choice drawn from one
seed: ``python -m zae_limiter.testing --seeds 500``.
"""

from .clock import ManualClock
from .stores import Fault, FaultyBackend, RecordingBackend

__all__ = ["Fault", "FaultyBackend", "ManualClock", "RecordingBackend"]
