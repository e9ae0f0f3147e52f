"""`python -m hintloop`."""

from hintloop.app import main

main()
