"""What a node hands over to a peer that it has just met: records of keys that the peer stands nearer to.

hivemind sends all of it in one request, however much it is. A receiver refuses what is out of bounds and
has only so much time for one peer, so here it is a few requests of a size that every node takes. What is
left out comes from its owner, who renews it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from swarmd.gossip.libp2p_bindings import DHTID, DictionaryDHTValue
from swarmd.gossip.libp2p_dht import MAX_KEYS_STORED

__all__ = ["MOST_BYTES", "handed_over"]

MOST_BYTES = 256_000
"""Of all records together."""
_REQUEST_BYTES = 128_000
_RECORD_OVERHEAD_BYTES = 80
"""Owner, expiry and framing beside the value."""

_Held = tuple[DHTID, str, bytes, float]


def handed_over(
    keys: Iterable[DHTID],
    held: Iterable[DictionaryDHTValue],
    is_known: Callable[[str], bool],
    rng: random.Random,
) -> Iterator[dict[DHTID, DictionaryDHTValue]]:
    """The records under `keys` as requests, records of peers in good standing first.

    Of more than MOST_BYTES some are left out, any of them with the same chance.
    """
    records: list[_Held] = [
        (key, owner, record.value, record.expiration_time)
        for key, under_key in zip(keys, held, strict=True)
        for owner, record in under_key.items()
    ]
    rng.shuffle(records)
    records.sort(key=lambda record: not is_known(record[1]))
    left = MOST_BYTES
    request: dict[DHTID, DictionaryDHTValue] = {}
    size_bytes = 0
    for key, owner, value, expiration_time in records:
        more_bytes = len(value) + _RECORD_OVERHEAD_BYTES
        if more_bytes > left:
            continue
        left -= more_bytes
        is_full = len(request) == MAX_KEYS_STORED and key not in request
        if request and (is_full or size_bytes + more_bytes > _REQUEST_BYTES):
            yield request
            request, size_bytes = {}, 0
        size_bytes += more_bytes
        request.setdefault(key, DictionaryDHTValue()).store(owner, value, expiration_time)
    if request:
        yield request
