"""EnvSpec to Lock: the model and its byte-stable codec, resolvers (uv, apt), staleness, artefacts."""
