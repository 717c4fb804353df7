"""The tables of the specification say what the code does."""

import re
from pathlib import Path

import msgspec
import pytest
from swarmd_protocol import codec, envelope, messages, text, validation
from swarmd_protocol.errors import Reason

from swarmd.config import GossipSection, PeersSection
from swarmd.gossip import libp2p_dht, transport
from swarmd.gossip.libp2p_records import MAX_RECORD_TTL_SECONDS
from swarmd.gossip.record_store import StoreLimits

SPEC = Path(__file__).parents[2] / "protocol" / "spec"


def rows(page: str, heading: str) -> list[list[str]]:
    """Cells of the first table after a heading, or after a line that begins so, without its head."""
    page_text = (SPEC / page).read_text(encoding="utf-8")
    after_heading = page_text[page_text.index(heading) :]
    table = re.search(r"^\|.*\n\|[-| ]+\n((?:\|.*\n?)+)", after_heading, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()]


def test_verdict_table_lists_every_reason_with_its_verdict():
    listed = {row[0].strip("`"): row[1] for row in rows("README.md", "## Verdicts")}
    assert listed == {reason.value: reason.verdict.value for reason in Reason}


def test_parameter_table_has_the_values_of_the_code():
    listed = {row[0].strip("`"): row[1] for row in rows("README.md", "## Parameters") if "`" in row[0]}
    gossip, peers = GossipSection(), PeersSection()
    limits = codec.DecodeLimits()
    in_code = {
        "protocol_version": messages.PROTOCOL_VERSION,
        "max_envelope_bytes": envelope.MAX_ENVELOPE_BYTES,
        "max_depth": limits.max_depth,
        "max_items": limits.max_items,
        "group_id_bytes": validation.GROUP_ID_BYTES,
        "max_name_characters": text.MAX_NAME_CHARACTERS,
        "max_combining_run": text.MAX_COMBINING_RUN,
        "max_normal_growth": text.MAX_NORMAL_GROWTH,
        "max_addresses": validation.MAX_ADDRESSES,
        "max_address_characters": validation.MAX_ADDRESS_CHARACTERS,
        "max_record_bytes": transport.MAX_RECORD_BYTES,
        "max_records_per_key": StoreLimits().records_per_key,
        "max_records_per_owner": StoreLimits().records_per_owner,
        "max_rpc_bytes": libp2p_dht.MAX_RPC_BYTES,
        "max_keys_found": libp2p_dht.MAX_KEYS_FOUND,
        "max_keys_stored": libp2p_dht.MAX_KEYS_STORED,
        "max_neighbours": libp2p_dht.MAX_NEIGHBOURS,
        "max_record_ttl_seconds": MAX_RECORD_TTL_SECONDS,
        "max_request_bytes": transport.MAX_REQUEST_BYTES,
        "max_reply_bytes": transport.MAX_REPLY_BYTES,
        "max_manifest_bytes": validation.MAX_MANIFEST_BYTES,
        "max_logprob_nats": validation.MAX_LOGPROB_NATS,
        "max_message_age_seconds": gossip.max_message_age_seconds,
        "max_clock_skew_seconds": gossip.max_clock_skew_seconds,
        "record_ttl_seconds": gossip.record_ttl_seconds,
        "catch_up_groups": gossip.catch_up_groups,
        "catch_up_bytes": gossip.catch_up_bytes,
        "messages_per_second": peers.messages_per_second,
        "bytes_per_second": peers.bytes_per_second,
        "verifier_share": peers.verifier_share,
        "burst_seconds": peers.burst_seconds,
    }
    assert {name: float(value) for name, value in listed.items()} == in_code


@pytest.mark.parametrize(
    ("page", "heading", "message_type"),
    [
        ("envelope.md", "## Form", envelope.EnvelopeBody),
        ("rollout.md", "## Fields", messages.RolloutGroupMessage),
        ("rollout.md", "A completion:", messages.CompletionMessage),
        ("rollout.md", "## Behaviour", messages.BehaviourLogprobs),
        ("task.md", "# Task reference", messages.TaskReference),
        ("records.md", "## Node record", messages.NodeRecordMessage),
        ("records.md", "## Manifest", messages.ManifestMessage),
        ("catch-up.md", "## Exchange", messages.CatchUpRequest),
        ("catch-up.md", "The reply:", messages.CatchUpReply),
    ],
)
def test_field_table_lists_the_fields_in_the_order_they_are_sent(page, heading, message_type):
    listed = [row[0].strip("`") for row in rows(page, heading)]
    assert listed == [field.name for field in msgspec.structs.fields(message_type)]


def test_no_default_limit_lets_an_envelope_reach_what_gossipsub_loses():
    assert envelope.MAX_ENVELOPE_BYTES < 2**20


def test_a_manifest_of_the_largest_size_fits_into_a_record():
    sealed = envelope.seal_message(
        messages.ManifestMessage("x" * validation.MAX_MANIFEST_BYTES),
        kind=messages.Kind.MANIFEST,
        swarm_id="5a" * 32,
        author=bytes(32),
        created_ms=2**62 - 1,
        sign=lambda message: bytes(64),
    )
    assert len(sealed) <= transport.MAX_RECORD_BYTES


def test_the_example_in_the_docs_runs(capsys):
    page = (SPEC.parents[1] / "docs" / "protocol.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert example is not None
    exec(compile(example[1], "docs/protocol.md", "exec"), {})
    assert capsys.readouterr().out == "bad_signature reject\n"
