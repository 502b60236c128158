"""Numbers as people read them: sizes, ratios, counts, instants.

Owns the wording of quantities in every text answer. JSON documents carry the plain numbers instead.
"""

from __future__ import annotations

import time

NANOSECONDS = 1_000_000_000
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def readable_size(size: float) -> str:
    """Return a number of bytes in the unit that leaves one to four digits before the point."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def readable_ratio(whole: int, part: int) -> str:
    """Return ``whole / part`` as ``3.2x``; nothing stored counts as ``1.0x``."""
    return f"{whole / part:.1f}x" if part else "1.0x"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 file``, ``2,000 files``; ``plural`` is for nouns that do not take an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def readable_time(when_ns: int, tz_minutes: int) -> str:
    """Return an instant as ``2025-03-01 14:05:09 +0100``, in the zone it was recorded in."""
    shifted = time.gmtime(when_ns // NANOSECONDS + tz_minutes * 60)
    sign = "-" if tz_minutes < 0 else "+"
    hours, minutes = divmod(abs(tz_minutes), 60)
    return time.strftime("%Y-%m-%d %H:%M:%S", shifted) + f" {sign}{hours:02d}{minutes:02d}"
