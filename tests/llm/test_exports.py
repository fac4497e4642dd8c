"""What `zae_limiter.llm` exports is complete, sorted and real; importing the package does not import it."""

import importlib
import inspect
import subprocess
import sys

from zae_limiter import llm

MODULES = ("amounts", "estimates", "meter", "tokens", "usage")
NOT_EXPORTED = {
    "cap_class": "how estimates put caps together",
    "count_of": "how counts of others are read",
    "is_final": "for the meter",
}
"""Public by spelling but not exported, each with its reason."""


def test_exports_are_complete() -> None:
    """What looks public can be imported from the top, or the table says why not."""
    found = set()
    for module in (importlib.import_module(f"zae_limiter.llm.{name}") for name in MODULES):
        found |= {
            name
            for name, value in vars(module).items()
            if name[0] != "_"
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == module.__name__
        }
    assert found - set(llm.__all__) == set(NOT_EXPORTED)
    assert list(llm.__all__) == sorted(set(llm.__all__))
    assert [name for name in llm.__all__ if not hasattr(llm, name)] == []


def test_nothing_is_imported_before_it_is_used() -> None:
    """Neither the kit by the package, nor a tokenizer by the kit."""
    program = (
        "import sys, zae_limiter; assert 'zae_limiter.llm' not in sys.modules;"
        "import zae_limiter.llm; zae_limiter.llm.estimate_tokens('hello');"
        "assert not {'tiktoken', 'requests', 'openai', 'anthropic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
