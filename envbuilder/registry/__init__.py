"""Registries over HTTP: one more Target. Transport, authentication, push and ranged pull, all verified.

Nothing here decides what to copy (store/copy.py) or trusts a header for a digest, and no
credential goes to an origin that it was not given for.
"""
