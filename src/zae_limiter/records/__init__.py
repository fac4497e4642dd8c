"""Typed records over a backend, one module for each kind; ``Repository`` puts them together."""
