"""What Prometheus reads of mounts and the chunk store."""

from envbuilder.mount.counters import Snapshot
from envbuilder.mount.metrics import hit_rate, prometheus
from envbuilder.mount.state import MountStatus, Record

RECORD = Record(
    id="ab12", directory="/mnt", image="sha256:1", how="erofs lazy", writable=False, private=False, detached=True,
    supervisor=1, points=(),
)  # fmt: skip


def test_every_counter_of_a_mount_is_a_metric_with_its_id():
    text = prometheus([MountStatus(RECORD, Snapshot(fetched_bytes=7, waited_us=1_500_000), True)], [], 100)

    assert 'envbuilder_mount_fetched_bytes_total{id="ab12",image="sha256:1"} 7\n' in text
    assert 'envbuilder_mount_waited_seconds_total{id="ab12",image="sha256:1"} 1.500000\n' in text
    assert text.endswith("envbuilder_chunks_limit_bytes 100\n")


def test_the_hit_rate_is_of_all_reads():
    assert hit_rate(Snapshot(hits=3, waits=1)) == 0.75
    assert hit_rate(Snapshot()) is None
