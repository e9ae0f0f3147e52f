"""What memory a configuration takes, told before it is spent.

:func:`hintloop_trainer.memory.estimate.estimate` computes it from the configuration and the student's ``config.json``
alone; nothing is built. ``check`` compares it with what is there, ``advice`` says what to turn down.
"""
