"""The console: shows the loop, its turns and its figures. It decides nothing."""
