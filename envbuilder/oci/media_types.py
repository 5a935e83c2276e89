"""Every media type and annotation key we read or write, in one place.

The strings of the draft EROFS image spec may change: they are here with the commit
they were taken from (erofs/erofs-image-spec spec.md 640fd6a5) and nowhere else.
"""

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_EMPTY = "application/vnd.oci.empty.v1+json"
OCI_LAYER_TAR = "application/vnd.oci.image.layer.v1.tar"
OCI_LAYER_TAR_GZIP = OCI_LAYER_TAR + "+gzip"
OCI_LAYER_TAR_ZSTD = OCI_LAYER_TAR + "+zstd"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_CONFIG = "application/vnd.docker.container.image.v1+json"
DOCKER_LAYER_TAR = "application/vnd.docker.image.rootfs.diff.tar"
DOCKER_LAYER_TAR_GZIP = DOCKER_LAYER_TAR + ".gzip"
DOCKER_LAYER_TAR_ZSTD = DOCKER_LAYER_TAR + ".zstd"  # of no specification; BuildKit and containerd write and read it

#: Layers that are a tar, however compressed.
TAR_LAYERS = frozenset(
    {
        OCI_LAYER_TAR,
        OCI_LAYER_TAR_GZIP,
        OCI_LAYER_TAR_ZSTD,
        DOCKER_LAYER_TAR,
        DOCKER_LAYER_TAR_GZIP,
        DOCKER_LAYER_TAR_ZSTD,
    }
)
MANIFESTS = frozenset({OCI_MANIFEST, DOCKER_MANIFEST})
INDEXES = frozenset({OCI_INDEX, DOCKER_INDEX})
CONFIGS = frozenset({OCI_CONFIG, DOCKER_CONFIG})
#: What a client sends as ``Accept`` for manifests (registry.md 3: all four, always).
MANIFEST_ACCEPT = (OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST)

# Draft EROFS image spec, 640fd6a5.
EROFS_LAYER = "application/vnd.erofs"
EROFS_LAYER_ZSTD = "application/vnd.erofs+zstd"
EROFS_OS_FEATURE = "erofs"
EROFS_ROLE = "org.erofs.role"
EROFS_ROLE_DEVICE = "device"
EROFS_UNCOMPRESSED_DIGEST = "org.erofs.uncompressed-digest"
#: ``offset:end`` (bytes of the blob, end exclusive) of the trailing zstd skippable frame that holds the chunk index,
#: and the sha256 of what is in it.
EROFS_CHUNK_INDEX_RANGE = "org.erofs.chunk-index.range"
EROFS_CHUNK_INDEX_DIGEST = "org.erofs.chunk-index.digest"

# Layers with a table of contents that others wrote (mount/foreign/toc.py).
#: Of the JSON in an eStargz layer (stargz-snapshotter docs/estargz.md).
STARGZ_TOC_DIGEST = "containerd.io/snapshot/stargz/toc.digest"
#: Prefixes of the keys of a zstd:chunked layer: of containers/storage since 1.48, and before.
ZSTD_CHUNKED = ("io.github.containers.zstd-chunked", "io.containers.zstd-chunked")
#: What a checkpoint index of a gzip layer is attached as (docs/formats/foreign-index.md).
FOREIGN_INDEX_ARTIFACT = "application/vnd.envbuilder.layer-index.v1"
FOREIGN_INDEX = "application/vnd.envbuilder.layer-index.v1+zstd"

# OCI image-spec annotations.md.
REF_NAME = "org.opencontainers.image.ref.name"
BASE_DIGEST, BASE_NAME = "org.opencontainers.image.base.digest", "org.opencontainers.image.base.name"
TITLE = "org.opencontainers.image.title"
VERSION = "org.opencontainers.image.version"

# Ours, reverse DNS of no host: the project has none.
PREFIX = "dev.envbuilder."
LOCK_DIGEST = PREFIX + "lock-digest"
SPEC_DIGEST = PREFIX + "spec-digest"
LAYER_ID = PREFIX + "layer"
PLAN_KEY = PREFIX + "plan-key"
#: Root over the pages of a layer's tar (layer/pages.py).
LAYER_PAGES = PREFIX + "pages"

#: Of a plain manifest: digest and bytes of the EROFS manifest of the same layers, for who finds it without their index.
EROFS_MANIFEST = PREFIX + "erofs-manifest"
#: Of a device: the digest of the layer of others whose files it has.
DEVICE_OF = PREFIX + "device-of"

#: Of an image in another format: the digest of the image that it was made of (custom/flavours).
FLAVOUR_OF = PREFIX + "flavour-of"

# Start-up traces (docs/formats/trace.md).
TRACE_ARTIFACT = "application/vnd.envbuilder.trace.v1"
TRACE = "application/vnd.envbuilder.trace.v1+zstd"
HOT_BUNDLE = "application/vnd.envbuilder.hot.v2"
#: When a trace was made, seconds since the epoch.
TRACE_MADE = PREFIX + "trace-made"
#: The trace and its bundle, "DIGEST SIZE" each, so that who lists referrers need not ask for the manifest.
TRACE_STORED = PREFIX + "trace-stored"
TRACE_HOT = PREFIX + "trace-hot"

# What is attached to an image as referrers (image/attached.py).
LOCK_ARTIFACT = "application/vnd.envbuilder.lock.v1"
LOCK_TOML = "application/vnd.envbuilder.lock.v1+toml"
CYCLONEDX = "application/vnd.cyclonedx+json"  # of IANA
SPDX = "application/spdx+json"  # of IANA
IN_TOTO = "application/vnd.in-toto+json"
RECORDS = "application/vnd.envbuilder.records.v1"

# The artefacts of a lock (docs/formats/archive.md).
ARTIFACTS = "application/vnd.envbuilder.artifacts.v1"
WHEEL = "application/vnd.envbuilder.wheel"
DEB = "application/vnd.debian.binary-package"  # of IANA
