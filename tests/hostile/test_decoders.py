"""Every decoder of bytes that another process or machine wrote: whatever the bytes are, it ends in a
value or in the one error that its callers expect.
"""

import asyncio
import contextlib
import functools
import http.server
import json
import os
import socketserver
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hostile.forge import Forger
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from swarmd_protocol.codec import decode, encode
from swarmd_protocol.envelope import open_envelope
from swarmd_protocol.errors import Reason
from swarmd_protocol.messages import (
    CatchUpReply,
    CatchUpRequest,
    ManifestMessage,
    NodeRecordMessage,
    RolloutGroupMessage,
)

from swarmd.errors import CheckpointError, ConfigError, IdentityFileError, WeightChannelError
from swarmd.gossip.catch_up import CatchUpServer, RecentGroups
from swarmd.gossip.libp2p_bindings import DHTRecord, DictionaryDHTValue, dht_pb2, get_dht_time
from swarmd.gossip.libp2p_dht import FlatSerializer, Gate
from swarmd.gossip.libp2p_records import _Validator
from swarmd.gossip.libp2p_streams import _read
from swarmd.gossip.peers import load_known_peers, save_known_peers
from swarmd.gossip.records import record_check
from swarmd.gossip.reputation import Reputation, ReputationSettings, judge
from swarmd.gossip.transport import KnownPeer, RequestError
from swarmd.identity import Identity, verify
from swarmd.loops.state import SavedState
from swarmd.models.weight_files import read_headers, read_object
from swarmd.monitor.control import ControlError, fetch_peers, fetch_status
from swarmd.monitor.status import LastKnown, NodeStatus, PeerStatus, load_last_known, save_last_known
from swarmd.replay.buffer import SavedGroup
from swarmd.rewards.messages import ScoreReason
from swarmd.rewards.records import Record, RecordReader, pack_record
from swarmd.tasks.manifest import Manifest
from swarmd.training.checkpoint import Checkpoint, CheckpointCounters, CheckpointStore
from swarmd.types import Completion, Prompt, RolloutGroup, TaskReference
from swarmd.weights.shared_memory import WeightReader, WeightWriter
from swarmd.workers.framing import (
    HEADER,
    Call,
    FrameError,
    Result,
    body_length,
    pack,
    unpack_to_daemon,
    unpack_to_worker,
)

MANIFEST = Manifest.load("tiny")
FORGER = Forger(Identity.generate(), MANIFEST)
NESTED = (b"\x91" * 100_000, b"[" * 100_000, b'{"":' * 100_000, b"\x81\xa0" * 100_000)


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """The original with some bytes changed, cut out, repeated or put in; or something else entirely."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200) | st.sampled_from(NESTED))
    bytes_ = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(bytes_)))
        end = min(len(bytes_), start + draw(st.integers(0, 8)))
        repeated = bytes(bytes_[start:end]) * 2
        bytes_[start:end] = draw(st.binary(max_size=8) | st.just(repeated) | st.sampled_from(NESTED))
    return bytes(bytes_)


@dataclass(frozen=True)
class Decoder:
    """How to read something, what it may raise, and an example of it."""

    read: Callable[[bytes], object]
    example: bytes
    raises: tuple[type[Exception], ...] = ()


def ends_well(read: Callable[[], object], raises: tuple[type[Exception], ...]) -> None:
    """Do it. What it may raise says so in one line."""
    said = ""
    try:
        read()
    except raises as error:
        said = str(error)
    assert "\n" not in said


def from_stream(data: bytes) -> bytes:
    async def read() -> bytes:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await _read(reader, 1000)

    return asyncio.run(read())


def answer_catch_up(data: bytes) -> bytes:
    server = CatchUpServer(MANIFEST.swarm_id, RecentGroups(1, 1, 1), 1, 1)
    return asyncio.run(server.answer("peer", data))


def frame_of_worker(data: bytes) -> object:
    body_length(data[: HEADER.size].ljust(HEADER.size, b"\0"))
    return unpack_to_daemon(data[HEADER.size :])


def dht_record(data: bytes) -> bool:
    subkey = encode(FORGER.identity.peer_id)
    return bool(
        _Validator(record_check(verify)).validate(DHTRecord(b"key", subkey, data, get_dht_time() + 9))
    )


def records_of_the_dht() -> bytes:
    records = DictionaryDHTValue()
    records.store(FORGER.identity.peer_id, RECORD, get_dht_time() + 60)
    data: bytes = FlatSerializer.dumps(records)
    return data


def from_child(data: bytes) -> list[Record | ScoreReason]:
    """What a child of the verifier writes before it ends: one record after the other."""
    read_fd, write_fd = os.pipe()
    try:
        os.set_blocking(write_fd, False)
        # What does not fit into the pipe is not written: the child has been killed by then.
        os.write(write_fd, data)
        os.close(write_fd)
        reader = RecordReader(read_fd)
        found = [reader.next(time.monotonic() + 10)]
        while isinstance(found[-1], Record):
            found.append(reader.next(time.monotonic() + 10))
        return found
    finally:
        os.close(read_fd)


GATE = Gate(lambda peer_id, size_bytes: True, lambda peer_id, reason: None)
SAVED = SavedState(
    round=3,
    groups=(
        SavedGroup(
            RolloutGroup(
                group_id="00" * 16,
                author="peer",
                is_local=False,
                task=TaskReference("binary_matrix", "0d" * 32, 1, 1),
                prompt=Prompt("plain", "1 + 1 = ?"),
                completions_G=(Completion("2", "stop", logprobs_T=(-0.5,)),),
                rewards_G=(1.0,),
                policy_version=1,
                created_at=1.0,
                received_at=1.0,
                size_bytes=100,
            ),
            age_seconds=1.0,
            uses=0,
        ),
    ),
)
ENVELOPE_LIMITS = MANIFEST.envelope_limits(MANIFEST.group_limits(600, 60))
RECORD = FORGER.record(("/ip4/1.2.3.4/tcp/1",))

DECODERS = {
    "group": Decoder(lambda data: decode(data, RolloutGroupMessage), encode(FORGER.group())),
    "node record": Decoder(
        lambda data: decode(data, NodeRecordMessage),
        encode(NodeRecordMessage("n", "m", "s", 1, 1, ("/",), 1)),
    ),
    "manifest message": Decoder(
        lambda data: decode(data, ManifestMessage), encode(ManifestMessage(MANIFEST.to_toml()))
    ),
    "catch-up request": Decoder(
        lambda data: decode(data, CatchUpRequest), encode(CatchUpRequest(MANIFEST.swarm_id, 1, 1, 1))
    ),
    "catch-up reply": Decoder(lambda data: decode(data, CatchUpReply), encode(CatchUpReply((b"x", b"y")))),
    "envelope": Decoder(
        lambda data: open_envelope(data, verify, ENVELOPE_LIMITS, 1_700_000_000_000), FORGER.envelope()
    ),
    "sealed record": Decoder(lambda data: record_check(verify)(FORGER.identity.peer_id, data), RECORD),
    "DHT record": Decoder(dht_record, encode(RECORD)),
    "stream": Decoder(from_stream, (5).to_bytes(8, "big") + b"reply", (RequestError, EOFError)),
    "catch-up answer": Decoder(answer_catch_up, encode(CatchUpRequest(MANIFEST.swarm_id, 1, 1, 1))),
    "manifest": Decoder(
        lambda data: Manifest.from_toml(data.decode(errors="replace")),
        MANIFEST.to_toml().encode(),
        (ConfigError,),
    ),
    "value of the DHT": Decoder(FlatSerializer.loads, records_of_the_dht(), (ValueError,)),
    "request to the DHT": Decoder(
        lambda data: GATE.open(FORGER.identity.peer_id, data, dht_pb2.StoreRequest),
        dht_pb2.StoreRequest(
            keys=[bytes(20)], subkeys=[b"s"], values=[RECORD], expiration_time=[1.0], in_cache=[False]
        ).SerializeToString(),
        (RequestError,),
    ),
    "state in a checkpoint": Decoder(SavedState.decode, SAVED.encode(), (CheckpointError,)),
    "answer of a scoring child": Decoder(
        from_child, pack_record(0, b"result") + pack_record(1, ScoreReason.MEMORY)
    ),
    "frame to the daemon": Decoder(frame_of_worker, pack(Result(1, b"reply")), (FrameError,)),
    "frame to a worker": Decoder(
        lambda data: unpack_to_worker(data[HEADER.size :]), pack(Call(1, "step", b"request")), (FrameError,)
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_bytes_of_any_kind_end_in_a_value_or_the_expected_error(name: str) -> None:
    decoder = DECODERS[name]
    decoder.read(decoder.example)

    @settings(max_examples=150, deadline=None)
    @given(damaged(decoder.example))
    def try_bytes(data: bytes) -> None:
        ends_well(lambda: decoder.read(data), decoder.raises)

    try_bytes()
    for nested in NESTED:
        ends_well(functools.partial(decoder.read, nested), decoder.raises)


@pytest.mark.parametrize(
    "name",
    [
        "last known state",
        "known peers",
        "identity",
        "reputation",
        "weights of a model",
        "configuration of a model",
    ],
)
def test_a_damaged_file_ends_in_a_value_or_the_expected_error(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    read, raises = FILES[name](path)
    example = path.read_bytes()
    read(path)

    @settings(max_examples=100, deadline=None)
    @given(damaged(example))
    def try_bytes(data: bytes) -> None:
        path.write_bytes(data)
        ends_well(lambda: read(path), raises)

    try_bytes()
    for data in NESTED:
        path.write_bytes(data)
        ends_well(lambda: read(path), raises)


Written = tuple[Callable[[Path], object], tuple[type[Exception], ...]]


def write_last_known(path: Path) -> Written:
    status = NodeStatus(peer_id="p", swarm="tiny", swarm_id="00", model="tiny", state="training")
    save_last_known(path, LastKnown(status, (PeerStatus(peer_id="q", rejected={"malformed": 1}),)))
    return load_last_known, ()


def write_known_peers(path: Path) -> Written:
    save_known_peers(path, [KnownPeer(FORGER.identity.peer_id, ("/ip4/1.2.3.4/tcp/1",))], {})
    return load_known_peers, ((), "")


def write_reputation(path: Path) -> Written:
    kept = Reputation(ReputationSettings(), lambda peer: "1.2.3.0/24", time.time)
    kept.note_valid(FORGER.identity.peer_id, useful=True)
    for _ in range(60):
        kept.note_refused("other", Reason.MALFORMED)
    kept.save(path)

    def read(path: Path) -> None:
        found = Reputation(ReputationSettings(), lambda peer: None, time.time)
        said = found.load(path)
        assert said is None or "\n" not in said
        found.is_closed("other")
        found.view("other")
        found.note_refused("other", Reason.MALFORMED)

    return read, ()


def write_weights(path: Path) -> Written:
    save_file({"w": torch.ones(3)}, path)
    return read_headers, (ConfigError,)


def write_model_configuration(path: Path) -> Written:
    path.write_text(json.dumps({"hidden_size": 8, "model_type": "qwen2", "architectures": ["Qwen2"]}))
    return read_object, (ConfigError,)


def write_identity(path: Path) -> Written:
    Identity.create(path)
    return Identity.load, (IdentityFileError,)


FILES = {
    "last known state": write_last_known,
    "known peers": write_known_peers,
    "identity": write_identity,
    "reputation": write_reputation,
    "weights of a model": write_weights,
    "configuration of a model": write_model_configuration,
}


def test_a_damaged_checkpoint_is_passed_over_with_one_line(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=1)
    weights = {"w": torch.ones(2)}
    counters = CheckpointCounters(model_digest="d", round=1, policy_version=1, steps=1, skipped_updates=0)
    saved = store.save(Checkpoint(weights=weights, optimizer=weights, counters=counters, node_state=b"state"))
    files = {path: path.read_bytes() for path in sorted(saved.path.iterdir())}

    def load() -> None:
        found = store.load_newest("d")
        assert found is not None
        assert torch.equal(found[0].weights["w"], weights["w"])

    @settings(max_examples=100, deadline=None)
    @given(st.data())
    def try_bytes(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(files)))
        path.write_bytes(data.draw(damaged(files[path])))
        ends_well(load, (CheckpointError,))
        path.write_bytes(files[path])

    try_bytes()


def test_a_damaged_weight_channel_gives_its_weights_or_one_line() -> None:
    name = f"swarmd-test-{os.getpid()}"
    weights = {"w": torch.arange(100, dtype=torch.float32), "b": torch.ones(3)}
    with WeightWriter.create(name, weights) as writer:
        writer.publish(1, weights)
        shared = Path("/dev/shm") / name
        original = shared.read_bytes()

        def read() -> None:
            with WeightReader.attach(writer.handle) as reader:
                version, tensors = reader.read()
            assert version == 1
            assert all(torch.equal(tensors[name], weights[name]) for name in weights)

        # Magic, lengths and checksum; which slot is current; the description of the slots.
        places = st.integers(0, 19) | st.integers(64, 71) | st.integers(4096, 4300)

        @settings(max_examples=150, deadline=None)
        @given(places, st.binary(min_size=1, max_size=4))
        def try_bytes(place: int, changed: bytes) -> None:
            data = bytearray(original)
            data[place : place + len(changed)] = changed
            with shared.open("r+b") as file:
                file.write(data)
            ends_well(read, (WeightChannelError,))

        try_bytes()
        with shared.open("r+b") as file:
            file.write(original)
        read()


def test_any_word_on_any_peer_is_taken_or_refused_in_one_line(tmp_path: Path) -> None:
    reputation = Reputation(ReputationSettings(), lambda peer: None, time.time)

    @settings(max_examples=100, deadline=None)
    @given(
        st.text() | st.just(FORGER.identity.peer_id), st.text() | st.sampled_from(("ban", "allow", "forget"))
    )
    def try_words(peer_id: str, word: str) -> None:
        ends_well(lambda: judge(reputation, tmp_path / "reputation", peer_id, word), (ConfigError,))

    try_words()


def test_any_answer_on_the_control_socket_is_understood_or_one_line(tmp_path: Path) -> None:
    answer = [b""]

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):  # The client need not read all of it.
                self.wfile.write(answer[0])

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(socketserver.ThreadingUnixStreamServer):
        def get_request(self):
            request, _ = super().get_request()
            return request, ("local", 0)

    path = tmp_path / "s"
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]"
    with Server(str(path), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        @settings(max_examples=60, deadline=None)
        @given(damaged(whole) | st.binary().map(lambda body: whole[:17] + b"\r\n\r\n" + body))
        def try_answers(data: bytes) -> None:
            answer[0] = data
            ends_well(lambda: fetch_status(path), (ControlError,))
            ends_well(lambda: fetch_peers(path), (ControlError,))

        try_answers()
        server.shutdown()
