"""OCI documents and names: parse and serialise, never any I/O."""
