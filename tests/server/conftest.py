"""Tests of the server that are coroutines."""

from tests.stores import clock, pytest_pyfunc_call, runner

__all__ = ["clock", "pytest_pyfunc_call", "runner"]
