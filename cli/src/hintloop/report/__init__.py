"""`hintloop report`: what a run learned, from what its trainer wrote beside its checkpoints. Needs no network."""
