"""What every trial needs and no mutant changes, loaded once by the server that trials are forked from."""

import asyncio
import concurrent.futures
import sqlite3
import sys
import urllib.request

import _pytest.assertion.rewrite
import hypothesis.stateful
import hypothesis.strategies
import pytest

__all__ = ["asyncio", "concurrent", "hypothesis", "pytest", "sqlite3", "urllib", "_pytest"]

assert "zae_limiter" not in sys.modules, "the project belongs to the trials"
