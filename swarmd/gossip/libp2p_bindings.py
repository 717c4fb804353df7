"""The parts of hivemind that talk to p2pd and to its DHT, imported without the rest.

Importing hivemind the usual way imports torch and its training code: 287 MB resident and two
seconds. The network parts need none of it: 39 MB and 0.2 seconds. So the packages are entered
without running their `__init__`, and the few names those parts expect from them are put in place.
When hivemind was imported the usual way before, that one is used.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from types import ModuleType

_BARE_PACKAGES = ("hivemind", "hivemind.utils", "hivemind.dht")
_UTILS_NAMES = {
    "hivemind.utils.serializer": ("MSGPackSerializer", "SerializerBase"),
    "hivemind.utils.logging": ("get_logger",),
    "hivemind.utils.timed_storage": ("get_dht_time",),
}


def _bare_package(name: str) -> ModuleType:
    """Put a package into sys.modules without running it, so that its submodules can be imported."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)
    return package


if "hivemind" not in sys.modules:
    for _name in _BARE_PACKAGES:
        _bare_package(_name)
    for _name, _exports in _UTILS_NAMES.items():
        _module = importlib.import_module(_name)
        for _export in _exports:
            setattr(sys.modules["hivemind.utils"], _export, getattr(_module, _export))

from google.protobuf.message import DecodeError as ProtobufError  # noqa: E402
from hivemind.dht.crypto import DHTRecord, RecordValidatorBase  # noqa: E402
from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.storage import DictionaryDHTValue  # noqa: E402
from hivemind.p2p.p2p_daemon import P2P, P2PContext  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID, PeerInfo, StreamInfo  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.p2pclient import Client  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import (  # noqa: E402
    P2PDaemonError,
    P2PHandlerError,
    read_pbmsg_safe,
    write_pbmsg,
)
from hivemind.proto import dht_pb2, p2pd_pb2  # noqa: E402
from hivemind.utils.logging import use_hivemind_log_handler  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402
from hivemind.utils.serializer import MSGPackSerializer  # noqa: E402
from hivemind.utils.timed_storage import ValueWithExpiration, get_dht_time  # noqa: E402

__all__ = [
    "DHTID",
    "P2P",
    "Client",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "MSGPackSerializer",
    "Multiaddr",
    "P2PContext",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "PeerInfo",
    "ProtobufError",
    "RecordValidatorBase",
    "StreamInfo",
    "ValueWithExpiration",
    "dht_pb2",
    "get_dht_time",
    "p2pd_path",
    "p2pd_pb2",
    "read_pbmsg_safe",
    "write_pbmsg",
]

# Its messages go where ours go; single lost peers are no warning for a person.
use_hivemind_log_handler("nowhere")
logging.getLogger("hivemind").setLevel(logging.ERROR)


def p2pd_path() -> str:
    """Where the wheel put the p2pd program."""
    spec = importlib.util.find_spec("hivemind.hivemind_cli")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("hivemind was installed without p2pd", name="hivemind.hivemind_cli")
    return f"{next(iter(spec.submodule_search_locations))}/p2pd"
