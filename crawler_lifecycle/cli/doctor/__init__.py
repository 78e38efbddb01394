"""``crawlctl doctor``: everything that a run needs, checked at once, each thing with a cure."""

from .verb import doctor

__all__ = ["doctor"]
