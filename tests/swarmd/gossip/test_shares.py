"""Fair shares: what a peer may use, alone and with its neighbours."""

from swarmd_protocol.errors import Reason

from swarmd.gossip.neighbourhood import Neighbourhoods
from swarmd.gossip.shares import FLOOD, PeerShares, Share

SHARE = Share(
    messages_per_second=10,
    bytes_per_second=1_000,
    verifier_seconds_per_second=0.5,
    burst_seconds=2,
    newcomer_part=0.25,
    neighbourhood_shares=3,
)


class Setting:
    """Shares with a clock that stands still, of peers at addresses of our choice."""

    def __init__(self, newcomers: tuple[str, ...] = (), places: dict[str, str] | None = None) -> None:
        self.now = 100.0
        neighbourhoods = Neighbourhoods(("127.0.0.0/8",))
        neighbourhoods.note_connected({p: (f"/ip4/{ip}/tcp/1",) for p, ip in (places or {}).items()})
        self.shares = PeerShares(SHARE, neighbourhoods, newcomers.__contains__, lambda: self.now)

    def admitted(self, peer_id: str, messages: int, size_bytes: int = 1) -> int:
        """How many of so many messages at once are taken."""
        return sum(self.shares.take(peer_id, size_bytes) is None for _ in range(messages))


def test_a_burst_is_taken_and_then_the_rate() -> None:
    setting = Setting(places={"a": "127.0.0.1"})
    assert setting.admitted("a", 50) == 20
    setting.now += 1.0
    assert setting.admitted("a", 50) == 10
    setting.now += 3600.0
    assert setting.admitted("a", 50) == 20


def test_bytes_are_limited_as_well_and_what_is_refused_costs_none() -> None:
    setting = Setting(places={"a": "127.0.0.1"})
    assert setting.admitted("a", 3, size_bytes=1_500) == 1
    assert setting.admitted("a", 1, size_bytes=500) == 1


def test_one_peers_flood_takes_nothing_from_another() -> None:
    setting = Setting(places={"a": "127.0.0.1", "b": "127.0.0.1"})
    setting.admitted("a", 10_000)
    assert setting.admitted("b", 20) == 20


def test_a_newcomer_has_a_part_of_a_share() -> None:
    setting = Setting(newcomers=("a",), places={"a": "127.0.0.1"})
    assert setting.admitted("a", 50) == 5


def test_haste_is_limited_and_many_times_the_share_is_a_flood() -> None:
    setting = Setting(places={"a": "127.0.0.1"})
    reasons = [setting.shares.take("a", 1) for _ in range(int(FLOOD * 20) + 5)]
    assert reasons[19:21] == [None, Reason.RATE_LIMITED]
    assert reasons[-6:] == [Reason.RATE_LIMITED] + [Reason.FLOODING] * 5
    setting.now += 1.0
    assert setting.shares.take("a", 1) is None


def test_many_keys_of_one_neighbourhood_have_as_much_as_a_few() -> None:
    keys = [f"key {number}" for number in range(50)]
    setting = Setting(places={key: f"203.0.113.{n}" for n, key in enumerate(keys)})
    assert sum(setting.admitted(key, 20) for key in keys) == 60
    assert Setting(places={"else": "198.51.100.1"}).admitted("else", 20) == 20


def test_new_keys_that_were_never_connected_have_one_share_together() -> None:
    keys = tuple(f"key {number}" for number in range(500))
    setting = Setting(newcomers=keys)
    assert sum(setting.admitted(key, 5) for key in keys) == 20
    # One that has shown what it is does not pay for them.
    assert setting.admitted("member", 20) == 20


def test_verifier_time_is_charged_afterwards_and_a_debt_has_to_be_waited_off() -> None:
    setting = Setting(places={"a": "127.0.0.1", "b": "127.0.0.1"})
    assert setting.shares.take("a", 1) is None
    setting.shares.charge_verifier("a", 5.0)
    assert not setting.shares.has_verifier_time("a")
    assert setting.shares.take("a", 1) is Reason.RATE_LIMITED
    assert setting.shares.has_verifier_time("b")
    setting.now += 9.0
    assert setting.shares.has_verifier_time("a")


def test_neighbours_share_verifier_time() -> None:
    setting = Setting(places={"a": "203.0.113.1", "b": "203.0.113.2"})
    assert setting.shares.take("a", 1) is None
    setting.shares.charge_verifier("a", 20.0)
    assert not setting.shares.has_verifier_time("b")
