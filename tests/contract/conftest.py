"""Each test of the contract that asks for ``store`` runs once for every store, as those of the records."""

from tests.records.conftest import clock, pytest_pyfunc_call, runner, store

__all__ = ["clock", "pytest_pyfunc_call", "runner", "store"]
