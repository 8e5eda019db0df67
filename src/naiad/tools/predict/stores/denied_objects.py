"""Objects that a store denies while it allows others: archived ones, or those with a key or a policy of their own.

A store answers alike for such an object and for a credential that has expired. So another object beside it is read:
where that succeeds, the credential is good, and the failure is about the one object.
"""

from naiad.repository.cloud.objects.object_failures import ObjectFailure
from naiad.repository.cloud.objects.objects import ObjectStore
from naiad.repository.cloud.objects.stored_object import ObjectChangedError, StoredObject, StoreError

_MAX_PROBES = 32
"""Objects that are tried, spread over the names beside the one that is denied."""


def is_only_denied(objects: ObjectStore, key: str) -> bool:
    """Return whether others can be read now. Raises StoreError if the store cannot be asked."""
    known = objects.last_read
    if known is not None and known.key != key and _can_be_read(objects, known):
        return True
    try:
        beside = objects.top_objects(key.rpartition("/")[0])
    except StoreError as error:
        if error.failure is ObjectFailure.DENIED:
            return False
        raise
    others = [each for each in beside if each.key != key and each.size_bytes]
    count = min(_MAX_PROBES, len(others))
    return any(_can_be_read(objects, others[number * len(others) // count]) for number in range(count))


def _can_be_read(objects: ObjectStore, item: StoredObject) -> bool:
    try:
        objects.read_range(item, 0, 1)
    except ObjectChangedError:
        return False
    except StoreError as error:
        if error.failure is ObjectFailure.DENIED:
            return False
        raise
    return True
