"""Where content lives: targets (memory, OCI layout, archive), graph copy, the bounded local cache.

Nothing here speaks HTTP: a registry is one more Target, in ``registry/``.
"""
