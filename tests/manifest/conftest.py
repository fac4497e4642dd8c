"""The stores and coroutine tests of the records; a manifest works through them."""

from tests.records.conftest import clock, pytest_pyfunc_call, runner, store

__all__ = ["clock", "pytest_pyfunc_call", "runner", "store"]
