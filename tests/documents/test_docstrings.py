"""Every example in a docstring of the package is true."""

import doctest
import importlib
import pkgutil

import pytest

import zae_limiter

# Modules that cannot be imported everywhere or do something when they are, each with its reason.
NOT_IMPORTED = {
    "zae_limiter.__main__": "runs the command",
    "zae_limiter.backends.dynamodb": "needs a driver",
    "zae_limiter.cli": "needs the packages of the extra",
}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(zae_limiter.__path__, "zae_limiter.", onerror=lambda _: None)
    if not any(module.name == name or module.name.startswith(f"{name}.") for name in NOT_IMPORTED)
]
# The examples people look at first; without this list a lost example would pass unnoticed.
SHOWN = {
    "zae_limiter",
    "zae_limiter.limiter",
    "zae_limiter.models.limits",
    "zae_limiter.sync",
    "zae_limiter.testing.traffic",
}


@pytest.mark.parametrize("name", ["zae_limiter", *MODULES])
def test_examples_are_true(name: str) -> None:
    """Examples print what their docstring says, with only the public names at hand."""
    module = importlib.import_module(name)
    public = {exported: getattr(zae_limiter, exported) for exported in zae_limiter.__all__}
    ran = doctest.testmod(module, extraglobs=public, raise_on_error=False)
    assert ran.failed == 0
    assert ran.attempted or name not in SHOWN, f"{name} has lost its example"


def test_the_table_of_modules_is_current() -> None:
    """Names in the tables belong to modules that exist."""
    assert set(MODULES) >= SHOWN - {"zae_limiter"}


def test_a_wrong_example_is_seen() -> None:
    """The runner that is used here does fail."""
    example = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3\n", {}, "wrong", None, 0)
    said: list[str] = []
    assert doctest.DocTestRunner(verbose=False).run(example, out=said.append).failed == 1
