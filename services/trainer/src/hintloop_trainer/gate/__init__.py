"""The release gate: probe prompts answered by candidate weights, what is measured of the answers, and the verdict."""
