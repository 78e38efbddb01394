"""Quantities as the API server tells them."""

from __future__ import annotations

from decimal import Decimal

_UNITS = {
    **{"": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3")},
    **{letter: Decimal(1000**n) for n, letter in enumerate("kMGTPE", 1)},
    **{f"{letter}i": Decimal(1024**n) for n, letter in enumerate("KMGTPE", 1)},
}


def amount(quantity: str) -> Decimal | None:
    """``500m``, ``2`` or ``64Mi`` as a number; ``None`` for what is no quantity of Kubernetes."""
    number = quantity.rstrip("numkKMGTPEi")
    unit = _UNITS.get(quantity[len(number) :])
    try:
        value = Decimal(number) * unit if unit is not None else None
    except ArithmeticError:  # no number, or one that no Decimal holds
        return None
    return value if value is not None and value.is_finite() else None
