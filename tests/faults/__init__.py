"""Faults that users meet, injected into a running local stack and lifted again.

They act on what a fault would act on: the configuration of a service, what Redis may hold, an engine's weights and
cache, a process, the agents' traffic, or the bytes on a wire between two parts. They know nothing of what looks for
them. `catalogue.FAULTS` lists them, each with a second variant that comes about in another way.
"""
