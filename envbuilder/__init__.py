"""envbuilder: locked, reproducible, lazily started OCI environments for GPU jobs.

Data flows one way: spec, lock, layer, image, registry, resolve, mount, session.
``docs/architecture.md`` has the map; ``cli/`` is the stable surface.
"""

__version__ = "0.1.0"
