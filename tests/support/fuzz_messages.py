"""Coverage-guided fuzzing of the decoders that read what strangers send. `make fuzz MINUTES=5` runs it.

An input is one byte that chooses a decoder, and the bytes that it reads. Whatever they are, the outcome
must be a message or a refusal, the message must survive being sent on, and no check may raise. The corpus
grows in build/fuzz; it begins with the golden bytes of protocol/vectors. An input that fails is written
there as well: it belongs into tests/hostile/test_fuzz_messages.py.

    python tests/support/fuzz_messages.py [FOLDER OF A CORPUS]... [OPTIONS OF LIBFUZZER]
"""

import json
import sys
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"
NOW_MS = 1_760_000_000_000
SWARM = "5a" * 32


def one_input(data: bytes) -> None:
    """Read the bytes as what their first byte says. Raises for any outcome that is none."""
    if not data:
        return
    message_types = [*CHECKS]
    choice, body = data[0] % (len(message_types) + 2), data[1:]
    if choice < len(message_types):
        _read_message(body, message_types[choice])
    else:
        # The second time with every signature good: what a hostile author can say.
        _read_envelope(body, is_signed=choice == len(message_types))


def _read_envelope(data: bytes, *, is_signed: bool) -> None:
    limits = EnvelopeLimits(SWARM, Kind.ROLLOUT_GROUP, None)
    opened = open_envelope(data, lambda key, signature, message: is_signed, limits, NOW_MS)
    if isinstance(opened, Refusal):
        return
    assert isinstance(opened, Envelope)
    _read_message(opened.payload, RolloutGroupMessage)


def _read_message(data: bytes, message_type: type[Any]) -> None:
    message = decode(data, message_type)
    if isinstance(message, Refusal):
        return
    assert isinstance(message, message_type)
    assert decode(encode(message), message_type) == message
    reason = CHECKS[message_type](message)
    assert reason is None or isinstance(reason, Reason)


def write_corpus(folder: Path) -> None:
    """The golden bytes, as inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [message_type.__name__ for message_type in CHECKS]
    cases = json.loads((VECTORS / "messages.json").read_text())["cases"]
    inputs = [bytes([names.index(case["message"])]) + _bytes_of(case) for case in cases]
    for file in ("envelopes.json", "refusals.json"):
        for case in json.loads((VECTORS / file).read_text())["cases"]:
            inputs += [bytes([len(names) + more]) + _bytes_of(case) for more in (0, 1)]
    for number, data in enumerate(inputs):
        (folder / f"vector-{number:03}").write_bytes(data)


def _bytes_of(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["hex"])


def main() -> None:
    """Fuzz until libFuzzer's limits are reached. Exits with another code than 0 after a failure."""
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-")]
    if folders:
        write_corpus(folders[0])
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    import atheris

    instrument = atheris.instrument_imports(include=["swarmd_protocol"])
else:
    from contextlib import nullcontext

    instrument = nullcontext()

with instrument:
    from swarmd_protocol.codec import decode, encode
    from swarmd_protocol.envelope import Envelope, EnvelopeLimits, open_envelope
    from swarmd_protocol.errors import Reason, Refusal
    from swarmd_protocol.messages import (
        CatchUpReply,
        CatchUpRequest,
        Kind,
        ManifestMessage,
        NodeRecordMessage,
        RolloutGroupMessage,
    )
    from swarmd_protocol.validation import (
        GroupLimits,
        RecordLimits,
        check_catch_up_request,
        check_group,
        check_manifest_text,
        check_node_record,
    )

GROUP_LIMITS = GroupLimits(2, 64, 1024, 256, {"binary_matrix": "0d" * 32}, (0, 2**20), 600_000, 60_000)
CHECKS = {
    RolloutGroupMessage: lambda message: check_group(message, GROUP_LIMITS, NOW_MS),
    NodeRecordMessage: lambda message: check_node_record(message, RecordLimits(600_000, 60_000), NOW_MS),
    ManifestMessage: check_manifest_text,
    CatchUpRequest: lambda message: check_catch_up_request(message, SWARM),
    CatchUpReply: lambda message: None,
}

if __name__ == "__main__":
    main()
