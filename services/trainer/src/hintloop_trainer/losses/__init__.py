"""Losses: one file each, all of one shape (see :mod:`inputs`)."""
