"""Names, numbers and strangers' texts as a page shows them."""

from __future__ import annotations

import math
import unicodedata

from markupsafe import Markup

from fsvi_bench.leaderboard.ranking import Score
from fsvi_bench.presenting.figures import NO_LOGARITHM
from fsvi_bench.presenting.plots import readable

TABLES = {
    "full": "Full covariance",
    "ffg": "Factorised",
    "singular": "Singular",
    "across": "All, box inputs",
    "across-test": "All, test inputs",
}
SCORES: dict[Score, str] = {
    "kl": "KL(q ‖ exact posterior), nats",
    "kl_above_floor": "KL above the floor of factorised q, nats",
    "predictive_kl_box": "predictive KL over the input box, nats",
    "predictive_kl_test": "predictive KL over the test inputs, nats",
}
MISSING = "–"
_KEPT = "\n\t"
_TURNS_OR_HIDES = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def digits(value: float | None, significant: int = 3) -> str:
    """A score to three significant digits: `0.0123`, `12.3`, `12,345`, `3.2·10⁻⁵`, `∞`, `–`; `≈ 0` is rounding."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value) or value == 0:
        return readable(value)
    if abs(value) < NO_LOGARITHM:
        return "≈ 0"
    rounded = float(f"{value:.{significant - 1}e}")
    if not 1e-3 <= abs(rounded) < 1e6:
        return readable(rounded)
    return fixed(value, max(0, significant - 1 - math.floor(math.log10(abs(rounded)))))


def fixed(value: float | None, places: int = 2) -> str:
    """A number with so many digits after its point."""
    return MISSING if value is None else f"{value:,.{places}f}".replace("-", "−")


def signed(value: float | None) -> str:
    """`digits` with its sign: a gap of 0.1 is `+0.100`."""
    text = digits(value)
    return f"+{text}" if value is not None and value > 0 and text[0].isdigit() else text


def sentence(text: str) -> str:
    """Words at the start of a sentence."""
    return text[:1].upper() + text[1:]


def interval(ends: tuple[float, float] | None) -> str:
    """`−0.12 to +3.40`."""
    return MISSING if ends is None else " to ".join(map(signed, ends))


def full(value: float | None) -> str:
    """All digits, which tables are sorted by, or the word that scripts read as infinity; empty where there is none."""
    if value is None or math.isnan(value):
        return ""
    return repr(float(value)).replace("inf", "Infinity")


def visible(value: object) -> object:
    """A stranger's text with what cannot be seen, or turns others around, spelled out: U+202E as `\\u202e`.

    Every value that stands in a page goes through here before it is escaped.
    """
    if not isinstance(value, str) or isinstance(value, Markup) or (value.isascii() and value.isprintable()):
        return value
    return "".join(c if c in _KEPT or unicodedata.category(c) not in _TURNS_OR_HIDES else _spelled(c) for c in value)


def _spelled(character: str) -> str:
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
