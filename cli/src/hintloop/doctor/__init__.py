"""`hintloop doctor`: walks the chain from the configuration to the weights and names what is wrong, and the fix."""
