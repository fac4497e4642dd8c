"""Who of several finds enough in a bucket, one after another. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..repository_protocol import Item
from . import booking
from .account import Terms
from .bucket_view import level
from .phase_writes import within_phase
from .posting import Posting, alike
from .seats import take_off
from .soft import hard


def fitting(postings: Sequence[Posting], terms: Terms, image: Item | None, now_ms: int) -> list[bool]:
    """Which postings a bucket can take, one after another; what is not asked for always fits."""
    if (each := alike(postings)) is not None:  # so it only matters how often there is enough
        need = each.need if not terms.soft else hard(terms, each.need)
        left_of = {name: level(terms, name, image, now_ms).balance(now_ms) for name in need}
        times = min((left_of[name] // amount for name, amount in need.items()), default=len(postings))
        return [place < times for place in range(len(postings))]
    if any(posting.booking for posting in postings):
        if terms.scheduled:
            postings = [within_phase(terms, posting, image, now_ms) for posting in postings]
        return [turn.fits for turn in booking.schedule(postings, terms, image, now_ms)]
    left: dict[str, int] = {}
    held: dict[tuple[str, int], int] = {}
    fits = []
    for posting in postings:
        need = posting.need if not terms.soft else hard(terms, posting.need)
        for name in need:
            if name not in left:
                left[name] = level(terms, name, image, now_ms).balance(now_ms)
        fit = all(left[name] >= amount for name, amount in need.items())
        fit = fit and (not posting.seats or take_off(posting.seats, image, held))
        fits.append(fit)
        if fit:
            for name, amount in need.items():
                left[name] -= amount
    return fits
