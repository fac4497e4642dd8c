"""Lets the clock of a page stand where the page's `clock` comment says; Python imports it by itself.

What is waited for is timed by other clocks, which go on.
"""

import os
import time
from datetime import datetime

if os.environ.get("CLOCK_STANDS_AT"):
    NOW_NS = int(datetime.fromisoformat(os.environ["CLOCK_STANDS_AT"]).timestamp()) * 1_000_000_000
    time.time_ns = lambda: NOW_NS
    time.monotonic_ns = lambda: NOW_NS
