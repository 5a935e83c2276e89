"""What Prometheus reads of mounts and the chunk store."""

from envbuilder.mount.counters import Snapshot
from envbuilder.mount.metrics import hit_rate, prometheus
from envbuilder.mount.seen.totals import Totals
from envbuilder.mount.state import MountStatus, Record

RECORD = Record(
    id="ab12", directory="/mnt", image="sha256:1", how="erofs lazy", writable=False, private=False, detached=True,
    keeper=1, supervisor=1, points=(),
)  # fmt: skip


def test_every_counter_of_a_mount_is_a_metric_with_its_id():
    text = prometheus([MountStatus(RECORD, Snapshot(fetched_bytes=7, waited_us=1_500_000), True)], [], 100)

    assert 'envbuilder_mount_fetched_bytes_total{id="ab12",image="sha256:1"} 7\n' in text
    assert 'envbuilder_mount_waited_seconds_total{id="ab12",image="sha256:1"} 1.500000\n' in text
    assert text.endswith("envbuilder_chunks_limit_bytes 100\n")


def test_the_hit_rate_is_of_all_reads():
    assert hit_rate(Snapshot(hits=3, waits=1)) == 0.75
    assert hit_rate(Snapshot()) is None


def test_sums_of_the_node_are_of_mounts_that_are_and_of_those_that_ended():
    ended = Totals(mounts=2, counters=Snapshot(fetched_bytes=10), ids=("old", "older"))
    here = MountStatus(RECORD, Snapshot(fetched_bytes=7), alive=True)

    text = prometheus([here], [], None, ended)

    assert "envbuilder_node_fetched_bytes_total 17\n" in text
    assert "envbuilder_node_mounts_total 3\n" in text


def test_a_mount_that_was_counted_and_is_not_cleared_away_yet_counts_once():
    ended = Totals(mounts=1, counters=Snapshot(fetched_bytes=7), ids=("ab12",))

    text = prometheus([MountStatus(RECORD, Snapshot(fetched_bytes=7), alive=False)], [], None, ended)

    assert "envbuilder_node_fetched_bytes_total 7\n" in text
