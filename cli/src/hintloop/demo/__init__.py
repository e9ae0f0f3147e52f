"""The demo: a scripted user with an unspoken preference, and a model that learns it from the feedback."""
