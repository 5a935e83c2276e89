"""Start-up traces: noted, merged, stored beside the image, made into a hot bundle."""
