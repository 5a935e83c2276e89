"""Artefacts to layers: entries, canonical tar, zstd frames, EROFS metadata, plan and build.

A layer is a pure function of its recipe. Nothing here speaks to a registry or an index.
"""
