import asyncio
import contextlib
import logging
import os
import socket

import pytest

from swarmd.monitor.service_manager import ServiceManager


@pytest.fixture
def manager(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(5)
        yield listening


def said_to(manager):
    return manager.recv(4096).decode()


def environment(tmp_path, **more):
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), **more}


def test_each_step_is_told_in_the_managers_words(manager, tmp_path):
    service = ServiceManager(environment(tmp_path))
    service.say("loading model")
    service.ready()
    service.reloading()
    service.stopping(15.25)
    assert [said_to(manager), said_to(manager)] == ["STATUS=loading model", "READY=1"]
    reloading, monotonic = said_to(manager).split("\n")
    assert reloading == "RELOADING=1"
    assert monotonic.removeprefix("MONOTONIC_USEC=").isdecimal()
    assert said_to(manager) == "STOPPING=1\nEXTEND_TIMEOUT_USEC=15250000"


def test_the_same_status_is_not_told_twice(manager, tmp_path):
    service = ServiceManager(environment(tmp_path))
    for text in ("round 1", "round 1", "round 2"):
        service.say(text)
    assert [said_to(manager), said_to(manager)] == ["STATUS=round 1", "STATUS=round 2"]


def test_an_abstract_address_is_understood(tmp_path):
    name = f"swarmd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name)
        listening.settimeout(5)
        ServiceManager({"NOTIFY_SOCKET": "@" + name}).ready()
        assert said_to(listening) == "READY=1"


async def test_the_watchdog_is_fed_more_often_than_it_asks(manager, tmp_path):
    service = ServiceManager(environment(tmp_path, WATCHDOG_USEC="150000", WATCHDOG_PID=str(os.getpid())))
    assert service.watchdog_seconds == 0.15
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.4):
            await service.keep_alive()
    assert [said_to(manager) for _ in range(3)] == ["WATCHDOG=1"] * 3


async def test_a_watchdog_of_another_process_is_not_fed(manager, tmp_path):
    service = ServiceManager(environment(tmp_path, WATCHDOG_USEC="150000", WATCHDOG_PID="1"))
    assert service.watchdog_seconds == 0
    await service.keep_alive()  # Returns at once.


def test_children_do_not_inherit_the_managers_variables(tmp_path):
    given = environment(tmp_path, WATCHDOG_USEC="1", WATCHDOG_PID="1", PATH="/bin")
    ServiceManager(given)
    assert given == {"PATH": "/bin"}


def test_a_manager_that_is_gone_is_said_once(tmp_path, caplog):
    service = ServiceManager(environment(tmp_path))
    with caplog.at_level(logging.WARNING):
        service.ready()
        service.stopping(15.25)
    assert [record.getMessage() for record in caplog.records] == [
        "the service manager cannot be told: No such file or directory"
    ]


def test_without_a_manager_nothing_is_sent(caplog):
    service = ServiceManager({})
    service.ready()
    assert (service.watchdog_seconds, caplog.records) == (0.0, [])
