"""Declarations to EnvSpec: pure, every problem of a file at once."""
