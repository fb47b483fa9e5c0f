"""A policy written in Python: for prototypes, a hundred to a thousand times slower than one in Rust.

In: what the engine tells. Out: pages to move. Must not: keep a page that is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Iterable, Mapping, Optional, Sequence

import numpy as np

NOWHERE = 255
"""The tier of a page without memory behind it."""


@dataclass(frozen=True)
class Scan:
    """Accessed bits of consecutive pages: page `first + k` has place k in each array."""

    first: int
    tier: np.ndarray
    """uint8; 0 is the fastest, `NOWHERE` where there is no memory."""
    accessed: np.ndarray
    """bool; whether the page was touched within the window."""
    dirty: np.ndarray
    """bool; whether it was written since it was last clean."""
    window: Optional[float]
    """Seconds since the bits were last cleared; None where they are not valid, and only the tiers are."""


@dataclass(frozen=True)
class Event:
    """One event on one page."""

    kind: str
    """sampled, hint_fault, refault, counted, allocated or freed."""
    page: int
    write: bool
    amount: int
    """Accesses that a sample or a count stands for; the tier of an allocation."""


@dataclass(frozen=True)
class Room:
    """How much room there is, in pages of 4 KiB."""

    used: Sequence[int]
    """By tier, from fast to slow."""
    capacity: Sequence[int]
    fast_limit: Optional[int]
    footprint: int
    fast_room: int
    """Pages that may still enter the fastest tier."""
    fast_excess: int
    """Pages that should leave it."""


class Policy:
    """Derive from it, give it a `name`, and override `plan`, and `scan` or `events`.

    The class is called with its settings, as texts, by name: `settings={"mine.idle": 3}` calls `Mine(idle="3")`. An exception that a method
    raises ends the comparison and comes out of it unchanged. There is a new object for every run; runs go side by side on several threads, which
    take turns in Python.
    """

    name: ClassVar[str] = "mine"
    needs: ClassVar[Sequence[str]] = ("scans",)
    """What it lives on: scans (of accessed bits) or samples (of the processor)."""
    interval: float = 1.0
    """Seconds between two scans, or two plans of one that lives on samples; seconds of the full-size machine."""
    share: float = 1.0
    """Share of the pages that each scan clears, 0 to 1, in rotation."""
    sample_periods: tuple[int, int] = (200, 100_000)
    """Accesses a sample stands for: loads that missed the cache, and stores."""

    def __init__(self, **settings: str) -> None:
        if settings:
            raise ValueError(f"{type(self).name}.{next(iter(settings))}: there is no such setting")

    def scan(self, now: float, seen: Scan) -> None:
        """Pages were scanned; `now` is in seconds since the start."""

    def events(self, now: float, seen: Sequence[Event]) -> None:
        """Something happened to single pages."""

    def plan(self, now: float, room: Room, tiers: np.ndarray) -> Iterable[tuple[int, int]]:
        """Pairs of page and tier, best first: requests, of which the governor may refuse any. `tiers` has the tier of each page (uint8)."""
        raise NotImplementedError(f"{type(self).__name__}.plan")

    def report(self) -> Mapping[str, float]:
        """Figures of its inside for reports, by name; a name ends with its unit."""
        return {}

    # What the extension calls.
    _next: float = 0.0

    def _schedule(self) -> tuple[Optional[float], float, Optional[float], Optional[int], Optional[int]]:
        scans = "scans" in self.needs
        loads, stores = self.sample_periods if "samples" in self.needs else (None, None)
        return (self._next if scans else None, self.share, None if scans else self._next, loads, stores)

    def _scan(self, now: float, first: int, states: bytes, window: Optional[float]) -> None:
        state = np.frombuffer(states, dtype=np.uint8)
        there = state != NOWHERE
        tier = np.where(there, state >> 4, NOWHERE).astype(np.uint8)
        self.scan(now, Scan(first, tier, there & (state & 1 != 0), there & (state & 2 != 0), window))

    def _events(self, now: float, seen: Sequence[tuple[str, int, bool, int]]) -> None:
        self.events(now, [Event(*one) for one in seen])

    def _plan(self, now: float, room: Mapping[str, Any], tiers: bytes) -> list[tuple[int, int]]:
        self._next = now + self.interval
        wanted = self.plan(now, Room(**room), np.frombuffer(tiers, dtype=np.uint8))
        return [(int(page), int(tier)) for page, tier in wanted]
