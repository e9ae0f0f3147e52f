"""The judge: reads what happened after an answer, and says how good it was and how it should have been."""
