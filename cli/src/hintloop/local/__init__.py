"""The local stack: every process of a deployment on one machine."""
