"""Weights to the engines: one control per dialect, the publishing sequence, and the reconciler."""
