"""Tests of the store on Redis that are coroutines run on a loop of their own."""

from tests.stores import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
