"""The `hintloop` command: the local stack, the demo, and what they say about themselves."""
