"""Searches schedules: measures the choices of every kernel of a model, and records the best."""
