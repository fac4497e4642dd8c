"""A test may be a coroutine."""

from tests.stores import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
