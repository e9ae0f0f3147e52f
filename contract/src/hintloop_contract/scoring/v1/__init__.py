"""`hintloop.scoring.v1`, generated from `scoring.proto` by `make proto`."""
