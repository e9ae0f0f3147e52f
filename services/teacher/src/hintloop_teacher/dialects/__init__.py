"""How each kind of PRM engine is asked for forced scores; one module each."""
