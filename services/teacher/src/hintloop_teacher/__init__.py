"""The teacher: log-probabilities of the very tokens that were answered, under the prompt with the hint."""
