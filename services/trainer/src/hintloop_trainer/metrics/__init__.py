"""The figures of each step: where they go, and those that are measured rather than computed by the loss."""
