"""Reputation: what a peer's past says about its next message.

Three things are counted of each peer, and all fade with one half-life:
- validity: groups that passed every check, against what only a faulty or hostile peer sends;
- usefulness: how many of the valid groups had rewards that differ, and so can teach;
- agreement: how often what a peer says agrees with what this node finds itself: its clock with ours,
  its policy versions with each other, its task library with ours, its groups with those seen before.

They make one score. Below a first threshold a peer's messages are ignored for a while; below a second
its connection is closed, and neither it nor new keys from its neighbourhood are let in until a pause
is over that doubles each time. A new key is a newcomer until enough of its groups were valid. What the
operator says (`ban`, `allow`) outweighs all of it. All of it survives a restart.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
from swarmd_protocol.errors import Reason, Verdict

from swarmd.errors import ConfigError, SwarmdError
from swarmd.gossip.kept_file import replace_file, set_aside
from swarmd.gossip.neighbourhood import UNSEEN

FORMAT = 1
MOST_PEERS = 4096
MOST_NEIGHBOURHOODS = 1024
_LARGEST_FILE_BYTES = 8_000_000

MOST_CREDIT = 20.0
"""Good deeds count up to here, so that nobody saves up for an attack."""
VALID_CREDIT = 0.2
USEFUL_CREDIT = 0.8
DISAGREEMENT_DEBIT = 0.02
MOST_DEBIT_FOR_DISAGREEMENT = 5.0
"""An honest peer may disagree for ever: that alone never reaches a threshold."""

Word = Literal["", "banned", "allowed"]
WORDS: dict[str, Word] = {"ban": "banned", "allow": "allowed", "forget": ""}
"""What an operator may say."""
_PEER_ID = re.compile(r"[1-9A-HJ-NP-Za-km-z]{40,64}")
State = Literal["newcomer", "member", "ignored", "closed", "banned", "allowed"]

# Where two nodes see the world differently, and neither needs to be at fault.
_DISAGREEMENTS = frozenset(
    {Reason.STALE, Reason.FROM_FUTURE, Reason.DUPLICATE, Reason.NOT_REGENERATED, Reason.VERSION_JUMP}
)


@dataclass(frozen=True)
class ReputationSettings:
    """When trust is lost, and for how long. Scores are in rejected messages: each one costs 1."""

    half_life_seconds: float = 600.0
    ignore_below: float = -20.0
    close_below: float = -50.0
    ignore_seconds: float = 60.0
    backoff_min_seconds: float = 300.0
    backoff_max_seconds: float = 86_400.0
    newcomer_groups: int = 20
    """Valid groups after which a peer is no newcomer."""


class Standing(msgspec.Struct):
    """What is kept of one peer. Counts fade, unless said otherwise; times are wall clock, seconds."""

    peer_id: str
    at: float
    """When the fading counts were last brought up to date."""
    valid: float = 0.0
    useful: float = 0.0
    invalid: float = 0.0
    disagreeing: float = 0.0
    groups: int = 0
    """Valid groups of all time; does not fade."""
    ignored_until: float = 0.0
    closed_until: float = 0.0
    closures: int = 0
    """How often it was closed since it last kept the peace for as long as the longest backoff."""
    word: Word = ""
    """The operator's."""

    @property
    def score(self) -> float:
        """Good deeds, up to a limit, minus bad ones."""
        credit = min(MOST_CREDIT, VALID_CREDIT * self.valid + USEFUL_CREDIT * self.useful)
        disagreement = min(MOST_DEBIT_FOR_DISAGREEMENT, DISAGREEMENT_DEBIT * self.disagreeing)
        return credit - self.invalid - disagreement

    def fade(self, now: float, half_life_seconds: float) -> None:
        """Bring the counts up to date."""
        factor = 0.5 ** (max(0.0, now - self.at) / half_life_seconds)
        self.at = now
        self.valid *= factor
        self.useful *= factor
        self.invalid *= factor
        self.disagreeing *= factor


class ReputationView(msgspec.Struct, frozen=True):
    """A peer's standing, for people. Shares are None where nothing was counted."""

    state: State
    score: float
    validity: float | None
    """Valid groups as a share of these and of what was rejected."""
    usefulness: float | None
    """Groups with signal as a share of the valid ones."""
    agreement: float | None
    """Valid groups as a share of these and of what disagreed."""
    seconds_left: float
    """Until an ignored or closed peer is heard again."""


class Reputation:
    """The standings of all peers.

    Bounded: newcomers are forgotten before peers with valid groups, the one not heard of for longest
    first; those the operator named are kept.

    Args:
        settings: when trust is lost.
        neighbourhood_of: where a peer lives; None where its address says nothing.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        settings: ReputationSettings,
        neighbourhood_of: Callable[[str], str | None],
        wall_clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        """In force; may be replaced at any time."""
        self._neighbourhood_of = neighbourhood_of
        self._wall_clock = wall_clock
        self._newcomers: OrderedDict[str, Standing] = OrderedDict()
        self._members: OrderedDict[str, Standing] = OrderedDict()
        self._named: dict[str, Standing] = {}
        self._closed_places: OrderedDict[str, float] = OrderedDict()

    def refusal(self, peer_id: str) -> Reason | None:
        """Why nothing is taken from this peer now, or None."""
        standing = self._find(peer_id)
        if standing is not None and standing.word:
            return Reason.BANNED if standing.word == "banned" else None
        now = self._wall_clock()
        if standing is not None:
            if now < standing.closed_until:
                return Reason.BANNED
            if now < standing.ignored_until:
                return Reason.IGNORED
        if self._closed_places and self.is_new(peer_id):
            place = self._neighbourhood_of(peer_id)
            if place is not None and now < self._closed_places.get(place, 0.0):
                return Reason.BANNED
        return None

    def is_closed(self, peer_id: str) -> bool:
        """Whether no connection with this peer is wanted."""
        return self.refusal(peer_id) is Reason.BANNED

    def is_new(self, peer_id: str) -> bool:
        """Whether a peer has yet to show that it is honest."""
        return peer_id not in self._members and self._word(peer_id) != "allowed"

    def note_valid(self, peer_id: str, useful: bool) -> None:
        """A group that this peer signed passed all checks and was scored."""
        standing = self._standing(peer_id)
        standing.fade(self._wall_clock(), self.settings.half_life_seconds)
        standing.groups += 1
        standing.valid += 1.0
        standing.useful += useful
        if standing.groups >= self.settings.newcomer_groups and peer_id in self._newcomers:
            self._members[peer_id] = self._newcomers.pop(peer_id)
            self._make_room()

    def note_refused(self, peer_id: str, reason: Reason) -> None:
        """Something of this peer was not accepted. What says nothing about the peer changes nothing."""
        rejected = reason.verdict is Verdict.REJECT
        if not rejected and reason not in _DISAGREEMENTS:
            return
        standing = self._standing(peer_id)
        now = self._wall_clock()
        standing.fade(now, self.settings.half_life_seconds)
        if not rejected:
            standing.disagreeing += 1.0
            return
        standing.invalid += 1.0
        if standing.word or now < standing.closed_until:
            return
        if standing.score < self.settings.close_below:
            self._close(standing, now)
        elif standing.score < self.settings.ignore_below:
            standing.ignored_until = now + self.settings.ignore_seconds

    def say(self, peer_id: str, word: Word) -> None:
        """The operator's word on a peer. Empty: what was known of it is forgotten."""
        standing = self._standing(peer_id)
        for group in (self._newcomers, self._members, self._named):
            group.pop(peer_id, None)
        if word == "banned":
            standing.word = word
            self._named[peer_id] = standing
        elif word == "allowed":
            self._named[peer_id] = Standing(peer_id, self._wall_clock(), groups=standing.groups, word=word)

    def view(self, peer_id: str) -> ReputationView:
        """A peer's standing now."""
        now = self._wall_clock()
        standing = self._find(peer_id) or Standing(peer_id, now)
        standing.fade(now, self.settings.half_life_seconds)
        until = max(standing.closed_until, standing.ignored_until)
        return ReputationView(
            state=self._state(peer_id, standing),
            score=standing.score,
            validity=_share(standing.valid, standing.invalid),
            usefulness=_share(standing.useful, standing.valid - standing.useful),
            agreement=_share(standing.valid, standing.disagreeing),
            seconds_left=0.0 if standing.word else max(0.0, until - now),
        )

    def named(self) -> tuple[str, ...]:
        """Peers the operator has banned or allowed."""
        return tuple(self._named)

    def save(self, path: Path) -> None:
        """Write all of it, replacing the file in one step. Raises OSError."""
        kept = _File(
            FORMAT,
            (*self._newcomers.values(), *self._members.values(), *self._named.values()),
            dict(self._closed_places),
        )
        replace_file(path, kept)

    def load(self, path: Path) -> str | None:
        """Take in what was saved. Returns what is wrong with the file, in a line, or None.

        A file that is missing is right. One that is damaged is left out whole; one of a newer swarmd is
        set aside.
        """
        try:
            with path.open("rb") as file:
                data = file.read(_LARGEST_FILE_BYTES)
            written_as = msgspec.json.decode(data, type=_Format).format
            if written_as > FORMAT:
                return set_aside(path, written_as, FORMAT)
            kept = msgspec.json.decode(data, type=_File)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return f"the reputation of peers in {path} cannot be read and begins anew: {error}"
        latest = self._wall_clock() + self.settings.backoff_max_seconds
        for standing in kept.peers:
            # Written under a clock that was ahead: no pause is longer than the longest.
            standing.closed_until = min(standing.closed_until, latest)
            standing.ignored_until = min(standing.ignored_until, latest)
            if standing.word:
                self._named[standing.peer_id] = standing
            elif standing.groups >= self.settings.newcomer_groups:
                self._members[standing.peer_id] = standing
            else:
                self._newcomers[standing.peer_id] = standing
        self._closed_places.update(
            {place: min(until, latest) for place, until in kept.neighbourhoods.items()}
        )
        self._make_room()
        return None

    def _close(self, standing: Standing, now: float) -> None:
        settings = self.settings
        if now - standing.closed_until > settings.backoff_max_seconds:
            standing.closures = 0
        pause = min(settings.backoff_max_seconds, settings.backoff_min_seconds * 2.0**standing.closures)
        standing.closures = min(standing.closures + 1, 64)
        standing.closed_until = now + pause
        # What it did is paid for by the pause: the next closure needs new faults.
        standing.invalid = 0.0
        place = self._neighbourhood_of(standing.peer_id)
        if place is not None and place != UNSEEN:
            self._closed_places[place] = max(standing.closed_until, self._closed_places.get(place, 0.0))
            self._closed_places.move_to_end(place)
            while len(self._closed_places) > MOST_NEIGHBOURHOODS:
                self._closed_places.popitem(last=False)

    def _state(self, peer_id: str, standing: Standing) -> State:
        if standing.word:
            return standing.word
        refusal = self.refusal(peer_id)
        if refusal is not None:
            return "closed" if refusal is Reason.BANNED else "ignored"
        return "newcomer" if self.is_new(peer_id) else "member"

    def _word(self, peer_id: str) -> Word:
        standing = self._named.get(peer_id)
        return standing.word if standing is not None else ""

    def _find(self, peer_id: str) -> Standing | None:
        return self._named.get(peer_id) or self._members.get(peer_id) or self._newcomers.get(peer_id)

    def _standing(self, peer_id: str) -> Standing:
        if peer_id in self._named:
            return self._named[peer_id]
        if peer_id in self._members:
            self._members.move_to_end(peer_id)
            return self._members[peer_id]
        if peer_id not in self._newcomers:
            self._newcomers[peer_id] = Standing(peer_id, self._wall_clock())
            self._make_room()
        self._newcomers.move_to_end(peer_id)
        return self._newcomers[peer_id]

    def _make_room(self) -> None:
        while len(self._newcomers) + len(self._members) > MOST_PEERS:
            (self._newcomers or self._members).popitem(last=False)


def judge(reputation: Reputation, path: Path, peer_id: str, word: str) -> str:
    """Take the operator's word on a peer, `ban`, `allow` or `forget`, and write it to `path`.

    Returns the peer's state. Raises SwarmdError for an unknown word or peer id, and when it cannot be
    written; the word then holds until the node ends.
    """
    if word not in WORDS:
        raise ConfigError(f"a peer is judged by {', '.join(WORDS)}, got {word!r}")
    check_peer_id(peer_id)
    reputation.say(peer_id, WORDS[word])
    try:
        reputation.save(path)
    except OSError as error:
        raise SwarmdError(f"{path} cannot be written: {error.strerror or error}") from error
    return reputation.view(peer_id).state


def check_peer_id(text: str) -> None:
    """Raises ConfigError for what cannot be a peer id."""
    if not _PEER_ID.fullmatch(text):
        raise ConfigError(
            f"{text[:80]!r} is no peer id: one looks like 12D3KooW..., and `swarmd peers` lists them"
        )


class _Format(msgspec.Struct, frozen=True):
    format: int


class _File(msgspec.Struct):
    """The form on disk."""

    format: int
    peers: tuple[Standing, ...]
    neighbourhoods: dict[str, float]
    """Until when new peers of a neighbourhood are not let in."""


def _share(part: float, rest: float) -> float | None:
    return part / (part + rest) if part + rest > 1e-6 else None
