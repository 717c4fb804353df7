"""What the records of the DHT promise beyond test_libp2p.py: clocks may differ."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.identity import Identity

# A node whose DHT sees a clock that is 20 s ahead; hivemind's own limit is 3 s.
SKEWED_NODE = """
import asyncio, sys, time
from pathlib import Path
from swarmd.gossip import libp2p_bindings, libp2p_records
from swarmd.gossip.libp2p import Libp2pSettings, Libp2pTransport
from swarmd.identity import Identity

for name, module in list(sys.modules.items()):
    if name.startswith("hivemind.") or module is libp2p_records:
        if hasattr(module, "get_dht_time"):
            module.get_dht_time = lambda: time.time() + 20

async def main():
    home, address = Path(sys.argv[1]), sys.argv[2]
    identity = Identity.create(home / "key")
    settings = Libp2pSettings(home / "key", identity.peer_id, home, ("/ip4/127.0.0.1/tcp/0",), (address,))
    async with Libp2pTransport(settings, lambda subkey, value: True) as transport:
        while True:
            await transport.put_record("key", b"ahead", 60)
            found = await transport.get_records("key")
            if len(found) == 2:
                print(*sorted(value.decode() for value in found.values()), flush=True)
            await asyncio.sleep(0.2)

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    # Unix socket paths are short; pytest's own folders are not.
    path = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


async def test_nodes_whose_clocks_differ_read_each_others_records(folder: Path) -> None:
    identity = Identity.create(folder / "key")
    settings = Libp2pSettings(folder / "key", identity.peer_id, folder, ("/ip4/127.0.0.1/tcp/0",))
    (folder / "skewed").mkdir()
    async with Libp2pTransport(settings, lambda subkey, value: True) as transport:
        skewed = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SKEWED_NODE,
            folder / "skewed",
            transport.state.addresses[0],
            stdout=asyncio.subprocess.PIPE,
        )
        assert skewed.stdout is not None
        try:
            async with asyncio.timeout(30):
                while len(found := await transport.get_records("key")) < 2:
                    await transport.put_record("key", b"on time", 60)
                    await asyncio.sleep(0.2)
                assert sorted(found.values()) == [b"ahead", b"on time"]
                assert await skewed.stdout.readline() == b"ahead on time\n"
        finally:
            skewed.kill()
            await skewed.wait()
