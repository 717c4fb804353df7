"""`swarmd swarm fetch` against a node on real p2pd that keeps manifests, a false one among them."""

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from swarmd_protocol.envelope import seal_message
from swarmd_protocol.messages import Kind, ManifestMessage
from swarmd_protocol.topics import manifest_key

from swarmd.cli.app import run_command_line
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.gossip.records import record_check
from swarmd.identity import Identity, verify
from swarmd.tasks.manifest import Manifest

pytestmark = pytest.mark.swarm

TRUE = Manifest.load("tiny")
FALSE = Manifest.load("sapo-nine")


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def address(folder: Path) -> AsyncIterator[str]:
    """Of a node under whose key for TRUE there is what the test says of FALSE, and TRUE."""
    liar = Identity.create(folder / "liar")
    identity = Identity.create(folder / "key")
    settings = Libp2pSettings(folder / "key", identity.peer_id, folder, ("/ip4/127.0.0.1/tcp/0",))
    async with Libp2pTransport(settings, record_check(verify)) as transport:
        assert transport._life is not None
        key = manifest_key(TRUE.swarm_id)
        await transport.put_record(key, sealed(identity, TRUE), 600)
        (tmp := folder / "other").mkdir()
        shutil.copy(folder / "liar", tmp / "key")
        lying = Libp2pSettings(
            tmp / "key", liar.peer_id, tmp, ("/ip4/127.0.0.1/tcp/0",), transport.state.addresses
        )
        async with Libp2pTransport(lying, record_check(verify)) as other:
            async with asyncio.timeout(20):
                while len(await transport.get_records(key)) < 2:
                    await other.put_record(key, sealed(liar, FALSE), 600)
                    await asyncio.sleep(0.2)
            yield transport.state.addresses[0]


def sealed(identity: Identity, manifest: Manifest) -> bytes:
    return seal_message(
        ManifestMessage(manifest.to_toml()),
        kind=Kind.MANIFEST,
        swarm_id=TRUE.swarm_id,
        author=identity.public_key,
        created_ms=1_700_000_000_000,
        sign=identity.sign,
    )


async def run(folder: Path, *arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "swarmd", "swarm", "fetch", *arguments),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()


async def test_a_manifest_is_had_by_its_id_and_an_address(folder: Path, address: str) -> None:
    code, out, error = await run(folder, TRUE.swarm_id, "--join", address, "--json")
    assert code == 0, error
    assert json.loads(out) == {"file": "tiny.toml", "name": "tiny", "swarm_id": TRUE.swarm_id}
    assert Manifest.load(str(folder / "tiny.toml")).swarm_id == TRUE.swarm_id


async def test_a_manifest_that_nobody_has_is_said_to_be_missing(folder: Path, address: str) -> None:
    code, _, error = await run(folder, FALSE.swarm_id, "--join", address, "--timeout", "4")
    assert code == 1, error
    assert "none holds it" in error
    assert not any(name.endswith(".toml") for name in os.listdir(folder))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("abc", "--join", "/ip4/127.0.0.1/tcp/1/p2p/" + "1" * 50), "64 hexadecimal digits"),
        ((TRUE.swarm_id, "--join", "127.0.0.1:31337"), "must be multiaddrs"),
    ],
)
def test_an_id_or_address_that_is_none_is_refused_at_once(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command_line(["swarm", "fetch", *arguments]) == 2
    assert said in capsys.readouterr().err
