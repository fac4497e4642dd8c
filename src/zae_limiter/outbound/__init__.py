"""Requests to APIs that limit us: each waits for its turn, and all workers share what the provider says."""

from .provider import Provider
from .told import ProviderAnswer, ToldLimit, read_answer

__all__ = ["ProviderAnswer", "Provider", "ToldLimit", "read_answer"]
