"""`hintloop replay`: recorded turns, run again through judge, teacher and trainer, without agents, serving no one."""
