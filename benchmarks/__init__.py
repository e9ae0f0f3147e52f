"""Measurements against goals: ``make bench``, or ``make bench ONLY=<part>``. A part is a folder with a ``__main__``."""
