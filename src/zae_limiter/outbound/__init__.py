"""Requests to APIs that limit us: each waits for its turn, and all workers share what the provider says."""

from .provider import Provider
from .told import ProviderAnswer, Told, read_answer

__all__ = ["ProviderAnswer", "Provider", "Told", "read_answer"]
