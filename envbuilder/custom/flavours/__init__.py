"""Images in lazy formats of others: eStargz for containerd's stargz-snapshotter, zstd:chunked for podman and CRI-O."""
