"""Which commands of the pages are not run by the tests, and why. The site says so below them."""

from __future__ import annotations

INSTALLS = "it installs, which the environment of this test has done already"
CHECKOUT = "it needs the checkout; tests/documents/newcomer.py runs it in a fresh one"
VERDICT = "it runs all tests, so none of them runs it"
WITHIN = "it needs the checkout"
EXAMPLE = "it serves or asks a provider; tests/examples does with the same application"
JOURNAL = "it needs a store that is an example; tests/examples installs that store and uses it"
AWS = "it needs an account of AWS"
NOT_RUN = {
    'pip install ".[cli,dynamodb]"': INSTALLS,
    'pip install ".[cli,server]"': INSTALLS,
    "git clone REPOSITORY_URL zae-limiter": CHECKOUT,
    "cd zae-limiter": CHECKOUT,
    "make demo": CHECKOUT,
    "make test": VERDICT,
    "make test     # lint, types and all tests: what CI runs": VERDICT,
    'pip install ".[cli]"': INSTALLS,
    "python3 -m venv venv": INSTALLS,
    ". venv/bin/activate": INSTALLS,
    "zae-limiter deploy --name limits --region eu-west-1": AWS,
    "zae-limiter status --name limits --region eu-west-1": AWS,
    "zae-limiter delete --name limits --region eu-west-1": AWS,
    "zae-limiter deploy --name limits --region eu-west-1 --lambda-memory 512 --tag team=search": AWS,
    "zae-limiter namespace show default --name my-table": AWS,
    "zae-limiter namespace show team-a --name limits": AWS,
}
"""Commands that do not run here, by their first line, and why."""
PREFIXES = {  # the same for all that start so
    "aws ": AWS,
    "zae-limiter deploy --name limits --create-iam-roles ": AWS,
    "zae-limiter upgrade --name ": AWS,
    "STORE_URL=": "it needs the checkout; tests/examples/test_store.py runs it",
    "make ": WITHIN,
    **dict.fromkeys(('pip install ".[fast', 'pip install ".[fl', 'pip install ".[dj'), INSTALLS),
    "pip install . ./examples/store": INSTALLS,
    "zae-limiter system set-defaults -l rpm:60 --store journal:": JOURNAL,
    **dict.fromkeys(
        ("OPENAI_API_KEY=", "UPSTREAM=", "ADMIN_TOKEN=", "uvicorn ", "pip install . httpx", "PROVIDER="),
        EXAMPLE,
    ),
}


def reason(command: str) -> str:
    """Why a command is not run, by its first line; nothing if it is run."""
    starts = (why for start, why in PREFIXES.items() if command.startswith(start))
    return NOT_RUN.get(command) or next(starts, "")
