"""What this node holds of the DHT for others. hivemind's own store would keep any number of subkeys,
and a trace of each time one was written.

Bounded in records, keys and bytes, in all and for each owner, before anything is kept. Where room is
short a record of a stranger leaves, any of them with the same chance, so that a crowd of new keys
displaces mostly itself. Records of peers in good standing stay; when only such are left, a stranger's
is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swarmd.gossip.libp2p_bindings import DHTID, DictionaryDHTValue, ValueWithExpiration, get_dht_time


@dataclass(frozen=True)
class StoreLimits:
    """How much is held for others."""

    records: int = 2048
    records_per_key: int = 256
    bytes_per_key: int = 1_000_000
    """All records under a key travel in one answer, of which hivemind reads 4 MiB at most."""
    records_per_owner: int = 8
    bytes: int = 16_000_000
    bytes_per_owner: int = 200_000


class RecordStore:
    """Values by key and subkey until they expire. The subkey is the owner's peer id.

    Stands in for hivemind's DHTLocalStorage: the names and the forms of the answers are hivemind's.

    Args:
        is_known: whether a peer is in good standing.
        limits: how much is held.
        clock: the DHT's time, seconds since the epoch.
    """

    def __init__(
        self,
        is_known: Callable[[str], bool],
        limits: StoreLimits | None = None,
        clock: Callable[[], float] = get_dht_time,
    ) -> None:
        self._is_known = is_known
        self._limits = limits or StoreLimits()
        self._clock = clock
        self._rng = random.Random()
        self._held: dict[DHTID, dict[str, tuple[bytes, float]]] = {}
        self._next_expiry = float("inf")

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def __contains__(self, key: DHTID) -> bool:
        return self.get(key) is not None

    @property
    def size_bytes(self) -> int:
        """Bytes of all values."""
        return sum(len(value) for held in self._held.values() for value, _ in held.values())

    def store(self, key: DHTID, value: bytes, expiration_time: float, subkey: str | None = None) -> bool:
        """As `store_subkey`. A value without a subkey has no owner and is refused."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: str, value: bytes, expiration_time: float) -> bool:
        """Hold a record. Whether it or a newer one is held: no when it has expired or there is no room."""
        self._expire()
        held = self._held.get(key, {})
        before = held.get(subkey)
        if expiration_time <= self._clock():
            return False
        if before is not None and before[1] >= expiration_time:
            # hivemind takes a dictionary up to the first record that is not held.
            return True
        if (before is None or len(value) > len(before[0])) and not self._make_room(
            key, subkey, len(value), before
        ):
            return False
        self._next_expiry = min(self._next_expiry, expiration_time)
        self._held.setdefault(key, {})[subkey] = (value, expiration_time)
        return True

    def get(self, key: DHTID) -> ValueWithExpiration | None:
        """The records under a key as hivemind's dictionary, None where there are none."""
        self._expire()
        held = self._held.get(key)
        if not held:
            return None
        found = DictionaryDHTValue()
        for subkey, (value, expiration_time) in held.items():
            found.store(subkey, value, expiration_time)
        return ValueWithExpiration(found, found.latest_expiration_time)

    def items(self) -> Iterator[tuple[DHTID, ValueWithExpiration]]:
        """All that is held, by key."""
        for key in list(self._held):
            found = self.get(key)
            if found is not None:
                yield key, found

    def _make_room(self, key: DHTID, owner: str, size_bytes: int, before: tuple[bytes, float] | None) -> bool:
        """Whether one more record of this size can be held, or a larger one in place of `before`."""
        limits = self._limits
        mine = [held[owner][0] for held in self._held.values() if owner in held]
        more_bytes = size_bytes - (len(before[0]) if before else 0)
        if before is None and len(mine) >= limits.records_per_owner:
            return False
        if sum(map(len, mine)) + more_bytes > limits.bytes_per_owner:
            return False
        while self._is_full(key, before is None, more_bytes):
            if not self._drop_stranger([key], owner):
                return False
        while (before is None and len(self) >= limits.records) or self.size_bytes + more_bytes > limits.bytes:
            if not self._drop_stranger(list(self._held), owner):
                return False
        return True

    def _is_full(self, key: DHTID, is_new: bool, more_bytes: int) -> bool:
        held = self._held.get(key, {})
        if is_new and len(held) >= self._limits.records_per_key:
            return True
        return sum(len(value) for value, _ in held.values()) + more_bytes > self._limits.bytes_per_key

    def _drop_stranger(self, keys: list[DHTID], spared: str) -> bool:
        """Drop a record of a stranger under one of these keys. False: there is none."""
        strangers = [
            (key, owner)
            for key in keys
            for owner in self._held.get(key, ())
            if owner != spared and not self._is_known(owner)
        ]
        if not strangers:
            return False
        self._drop(*self._rng.choice(strangers))
        return True

    def _drop(self, key: DHTID, owner: str) -> None:
        del self._held[key][owner]
        if not self._held[key]:
            del self._held[key]

    def _expire(self) -> None:
        now = self._clock()
        # Looked through only when something is due: strangers may ask often.
        if now < self._next_expiry:
            return
        for key, owner in [
            (key, owner)
            for key, held in self._held.items()
            for owner, (_, expiration_time) in held.items()
            if expiration_time <= now
        ]:
            self._drop(key, owner)
        times = (expires for held in self._held.values() for _, expires in held.values())
        self._next_expiry = min(times, default=float("inf"))
