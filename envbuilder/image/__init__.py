"""Layers to an OCI image: assemble, describe. Pure."""
