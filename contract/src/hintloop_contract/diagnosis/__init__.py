"""What can be wrong with a loop, and how it is recognised from its figures. Pure: no Redis, no services."""
