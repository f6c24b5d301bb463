"""Numbers and strangers' texts as a page shows them."""

from __future__ import annotations

import math
import unicodedata

from fsvi_bench.presenting.plots import SUPERSCRIPTS

MISSING = "–"
_KEPT = "\n\t"
_TURNS_OR_HIDES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def digits(value: float | None, significant: int = 3) -> str:
    """A score to three significant digits: `0.0123`, `12.3`, `12,345`, `3.2·10⁻⁵`, `∞`, `–`."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    size = abs(value)
    if size == 0:
        return "0"
    if not 1e-3 <= size < 1e6:
        exponent = math.floor(math.log10(float(f"{size:.{significant - 1}e}")))
        return _minus(f"{value / 10**exponent:.{significant - 2}f}·10{str(exponent).translate(SUPERSCRIPTS)}")
    # 9.996 has three digits before its point's place is known: it is 10.0.
    magnitude = math.floor(math.log10(float(f"{size:.{significant - 1}e}")))
    return _minus(f"{value:,.{max(0, significant - 1 - magnitude)}f}")


def signed(value: float | None) -> str:
    """`digits` with its sign: a gap of 0.1 is `+0.100`."""
    text = digits(value)
    return f"+{text}" if value is not None and value > 0 else text


def interval(ends: tuple[float, float] | None) -> str:
    """`0.12 to 3.40`; empty where there is none."""
    return "" if ends is None else f"{digits(ends[0])} to {digits(ends[1])}"


def fixed(value: float | None, places: int) -> str:
    """A number with so many digits after its point."""
    return digits(value) if value is None or not math.isfinite(value) else _minus(f"{value:.{places}f}")


def full(value: float | None) -> str:
    """All digits, or the word that scripts read as infinity; empty where there is no number."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return repr(float(value))


def ordinal(place: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th."""
    last = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{last}"


def join(names: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def visible(text: str) -> str:
    """A stranger's text with what cannot be seen, or turns others around, spelled out: U+202E as `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in _KEPT or unicodedata.category(c) not in _TURNS_OR_HIDES else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _minus(text: str) -> str:
    return text.replace("-", "−")
