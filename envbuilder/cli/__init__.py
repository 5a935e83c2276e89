"""The command: one module a verb. The only place that reads the environment."""
