"""Shipped helpers for tests: contract checks, a registry that misbehaves, tiny artefacts."""
