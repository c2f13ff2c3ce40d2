"""The number that a text answers with, exactly: integers, decimals, powers of ten, and fractions as text or LaTeX."""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST = 1_000  # digits; Python itself reads no more than 4,300

_PLAIN = r"(?:\d{1,3}(?:,\d{3})+(?![\d,])|\d+)(?:\.\d+)?|\.\d+"
# A sign behind a letter or a digit is an operator.
_NUMBER = re.compile(
    rf"(?<![\w.])([-+]?)({_PLAIN})(?:[eE]([-+]?\d{{1,3}})(?!\w))?(?:\s*/\s*(\d+)(?![\w.]\d))?"
)
_MIXED = re.compile(r"(?<![\w.])(\d+)\s*\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
# TeX takes single digits without braces: \frac43.
_SHORT = re.compile(r"\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))")
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?)\s*([\d.,]+)\s*\}\s*\{\s*(\d+)\s*\}")
_BESIDE = re.compile(
    r"\\(?:text|mbox|textbf|mathrm)\s*\{[^{}]*\}(?:\^\{?\d\}?)?|\^\s*\{?\s*\\circ\s*\}?"
    r"|\\[,;! ]|\\?[$%]|\\left|\\right|[{}()]"
)
_NAMED = re.compile(r"^\s*[A-Za-z]\w*\s*=")


def answered_number(text: str) -> str | None:
    """What a text answers with: the number in its last box, else its last number.

    Returns:
        the number in lowest terms, "7" or "-5/2", so that equal numbers are equal texts; None without one, and for a
        box that holds more than a number.
    """
    boxed = _last_box(text)
    if boxed is not None:
        return whole_number(_NAMED.sub("", boxed))
    found = list(_NUMBER.finditer(_written_out(text)))
    return _value(found[-1]) if found else None


def whole_number(text: str) -> str | None:
    """The number that a text is, units of money and per cent signs aside; None when it is anything else."""
    found = _NUMBER.fullmatch(_BESIDE.sub("", _written_out(text)).strip().rstrip("."))
    return _value(found) if found else None


def _last_box(text: str) -> str | None:
    """What the last `\\boxed{...}` holds; None without one that is closed."""
    start = text.rfind(r"\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len(r"\boxed{")
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth < 0:
            return text[begin:at]
    return None


def _written_out(text: str) -> str:
    """Fractions with a stroke, and the minus of typesetting as that of the keyboard."""
    plain = _SHORT.sub(lambda m: rf"\frac{{{m[1] or m[2]}}}{{{m[3] or m[4]}}}", text.replace("\u2212", "-"))
    plain = _MIXED.sub(lambda m: f"{int(m[1]) * int(m[3]) + int(m[2])}/{m[3]}", plain)
    return _FRACTION.sub(lambda m: f"{m[1]}{m[2]}/{m[3]}", plain)


def _value(found: re.Match[str]) -> str | None:
    sign, digits, power, below = found.groups()
    if len(digits) > LONGEST or len(below or "") > LONGEST or int(below or 1) == 0:
        return None
    value = Fraction(digits.replace(",", "")) * Fraction(10) ** int(power or 0) / int(below or 1)
    return str(-value if sign == "-" else value)
