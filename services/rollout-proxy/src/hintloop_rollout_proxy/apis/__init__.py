"""One module per agent-facing API, and what they share."""
