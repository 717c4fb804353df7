"""Talking to the service manager that started the node (systemd's sd_notify): ready, what it does,
reloading, stopping, and the watchdog. Each message is one datagram on the socket that the environment
names; without that variable nobody listens, and nothing is sent.

The protocol: `man sd_notify` and `man sd_watchdog_enabled`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger("swarmd.node")

_PINGS_PER_WATCHDOG = 3


class ServiceManager:
    """The service manager's ear. A message that it does not take is logged once and costs nothing else."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Takes the manager's variables out of `environment`: they are not for the node's children."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog_usec = environment.pop("WATCHDOG_USEC", "")
        watchdog_pid = environment.pop("WATCHDOG_PID", "")
        # A leading @ stands for the zero byte of Linux's abstract names.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._told = False
        self._status = ""
        self.watchdog_seconds = 0.0
        """A node that is silent for longer is restarted by the manager. 0: nobody watches."""
        if address and watchdog_usec.isdecimal() and watchdog_pid in ("", str(os.getpid())):
            self.watchdog_seconds = int(watchdog_usec) / 1e6

    async def keep_alive(self) -> None:
        """Tell the manager again and again that the event loop turns, until cancelled."""
        while self.watchdog_seconds:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / _PINGS_PER_WATCHDOG)

    def ready(self) -> None:
        """The node has started, or has reloaded its configuration."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again; `ready` says when that is done."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, seconds: float) -> None:
        """The node is on its way to its end, and should be given that long, whatever the unit says."""
        self._send(f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int(seconds * 1e6)}")

    def say(self, text: str) -> None:
        """One line for people, shown by `systemctl status`."""
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # A manager that does not read may cost a message, not time.
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            if not self._told:
                self._told = True
                log.warning("the service manager cannot be told: %s", error.strerror or error)
