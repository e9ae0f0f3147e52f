"""The trainer: samples in, advantages, one optimizer step, checkpoints, and weights out to the engines."""
