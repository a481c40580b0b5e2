"""Numbers written for people."""

from __future__ import annotations

import numpy as np


def format_count(count: float) -> str:
    """Write a count for people: 46,350 or 1.23 M.

    Args:
        count: Any number.
    """
    # What three digits round to 1,000 M is 1 G.
    for size, unit, least in ((1e12, "T", 0.9995), (1e9, "G", 0.9995), (1e6, "M", 1.0)):
        scaled = count / size
        if abs(scaled) >= 999.5:
            return f"{scaled:,.0f} {unit}"
        if abs(scaled) >= least:
            return f"{scaled:.3g} {unit}"
    return f"{count:,.0f}" if float(count).is_integer() or abs(count) >= 100 else f"{count:.3g}"


def format_percent(share: float) -> str:
    """Write a share as a percentage with about two digits: 52 %, 0.024 %; only the whole is 100 %.

    Args:
        share: A share, 0.52 for 52 %.
    """
    percent = 100 * share
    # Sums of floats that make up the whole may miss it by some 1e-16.
    if 99.5 <= percent < 100 - 1e-7:
        return "> 99.9 %" if percent > 99.9 else f"{percent:.1f} %"
    if percent == 0 or abs(percent) >= 10:
        return f"{percent:.0f} %"
    return f"{np.format_float_positional(percent, precision=2, fractional=False, trim='-')} %"
