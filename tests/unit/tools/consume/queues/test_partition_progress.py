"""What is committed of a partition."""

from hypothesis import given
from hypothesis import strategies as st

from naiad.tools.consume.queues.kafka.partition_progress import PartitionCommit, PartitionProgress


def test_commits_are_in_order() -> None:
    progress = PartitionProgress(10)
    assert [progress.deliver(each) for each in (10, 11, 12)] == [1, 1, 1]
    assert progress.next_commit == PartitionCommit(10, "naiad 1 13")
    progress.finish(11)
    assert progress.next_commit == PartitionCommit(10, "naiad 1 13")
    progress.finish(10)
    assert progress.next_commit == PartitionCommit(12, "naiad 1 13")
    progress.finish(12)
    done = PartitionCommit(13, "")
    assert progress.next_commit == done
    progress.note_committed(done)
    assert progress.next_commit is None


def test_the_next_consumer_counts_the_deliveries_before() -> None:
    progress = PartitionProgress(12, "naiad 3 14")
    assert [progress.deliver(each) for each in (12, 13, 14)] == [4, 4, 1]
    assert progress.next_commit == PartitionCommit(12, "naiad 4 14")
    progress.finish(12)
    progress.finish(13)
    assert progress.next_commit == PartitionCommit(14, "naiad 1 15")


def test_metadata_of_another_program_counts_as_none() -> None:
    assert PartitionProgress(0, "naiad x").deliver(0) == 1


def test_offsets_without_messages_are_passed() -> None:
    progress = PartitionProgress(5)
    progress.deliver(5)
    progress.reach(8)
    progress.finish(5)
    assert progress.next_commit == PartitionCommit(8, "")


@given(st.lists(st.integers(0, 30), unique=True, max_size=30), st.data())
def test_no_open_message_is_ever_behind_the_commit(offsets: list[int], data: st.DataObject) -> None:
    progress, unread, opened = PartitionProgress(0), sorted(offsets), set[int]()
    while unread or opened:
        if unread and (not opened or data.draw(st.booleans())):
            opened.add(unread[0])
            progress.deliver(unread.pop(0))
        else:
            done = data.draw(st.sampled_from(sorted(opened)))
            opened.discard(done)
            progress.finish(done)
        commit = progress.next_commit
        if commit is not None:
            assert all(commit.offset <= each for each in {*opened, *unread})
            progress.note_committed(commit)
