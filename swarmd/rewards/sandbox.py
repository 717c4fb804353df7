"""Closes the verifier process, and more tightly each child that scores. Completions are hostile text,
and a scorer of a library was not written with that in mind.

Promises, as far as the machine has the layers: after `close_process` this process opens no socket,
starts no program, and reads no file outside Python's own libraries; after `close_child` the child
moreover cannot fork, signal, or use more memory, processor time or files than it is given. What a
machine lacks is said, not fatal. Works as root and as a user. Linux; elsewhere only limits remain.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmd.rewards.system_calls import close_system_calls

LAYERS = ("rlimits", "no_new_privs", "seccomp", "landlock", "namespaces")
"""All that there can be, in the order they are reported in."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWIPC = 0x08000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522
_FAULTS = (ImportError, OSError, RuntimeError, AttributeError)


@dataclass(frozen=True)
class Sandbox:
    """What encloses this process. Made by `close_process`; children pass through `close_child`."""

    layers: tuple[str, ...]
    missing: tuple[str, ...]
    """Layers that are not there, each with the reason."""
    address_space_bytes: int
    """Of this process when it was closed. 0: unknown, children get no memory limit."""
    child_filter: Any = None
    """The children's system-call filter, ready to load."""

    def close_child(self, memory_bytes: int, cpu_seconds: int, parent_pid: int) -> None:
        """Encloses a freshly forked child. Its file descriptors must be reduced to 0-3 before."""
        if "namespaces" in self.layers:
            _enter_namespaces()
        _drop_capabilities()
        # After the change of capabilities, which resets it.
        _die_with(parent_pid)
        limits = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_FSIZE: 0,
            resource.RLIMIT_CPU: cpu_seconds,
            resource.RLIMIT_NPROC: 0,
            # With a layer missing no descriptor can be added: neither a socket nor a file.
            resource.RLIMIT_NOFILE: 64 if self.is_closed else 4,
        }
        if self.address_space_bytes:
            limits[resource.RLIMIT_AS] = self.address_space_bytes + memory_bytes
        for kind, value in limits.items():
            _lower_limit(kind, value)
        if self.child_filter is not None:
            self.child_filter.load()

    @property
    def is_closed(self) -> bool:
        """Whether system calls and files are both guarded, which no other layer can stand in for."""
        return {"seccomp", "landlock"} <= set(self.layers)


def limit_growth(growth_bytes: int) -> None:
    """Bounds what this process itself may grow by, in address space. A dataset's configuration may ask
    for items of any size.
    """
    address_space_bytes = _address_space_bytes()
    if address_space_bytes:
        _lower_limit(resource.RLIMIT_AS, address_space_bytes + growth_bytes)


def close_process() -> Sandbox:
    """Closes this thread and all it will fork. Import everything first. Cannot be undone."""
    layers = ["rlimits"]
    missing: list[str] = []
    _lower_limit(resource.RLIMIT_CORE, 0)
    address_space_bytes = _address_space_bytes()
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1):
        layers.append("no_new_privs")
        # Not dumpable: another process of the same user cannot attach to it either.
        _prctl(_PR_SET_DUMPABLE, 0)
    else:
        missing.append("no_new_privs: not on this platform")
    child_filter = None
    # Seccomp first: behind Landlock its library can no longer be found.
    try:
        child_filter = close_system_calls()
        layers.append("seccomp")
    except _FAULTS as error:
        missing.append(f"seccomp: {_one_line(error)}")
    try:
        _close_files()
        layers.append("landlock")
    except _FAULTS as error:
        missing.append(f"landlock: {_one_line(error)}")
    fault = _fault_in_child(_enter_namespaces)
    if fault is None:
        layers.append("namespaces")
    else:
        missing.append(f"namespaces: {fault}")
    return Sandbox(tuple(layers), tuple(missing), address_space_bytes, child_filter)


def _close_files() -> None:
    from landlock import FSAccess, Ruleset

    ruleset = Ruleset()
    for path in _library_folders():
        ruleset.allow(path, rules=FSAccess.READ_FILE | FSAccess.READ_DIR)
    ruleset.allow(os.devnull, rules=FSAccess.READ_FILE | FSAccess.WRITE_FILE)
    ruleset.allow("/dev/urandom", rules=FSAccess.READ_FILE)
    ruleset.apply()


def _library_folders() -> list[str]:
    """Folders of the standard library and of installed packages; scorers may import late."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_path(name) for name in names]
    # Also those of the user and of the distribution, but nothing else that may stand there: not the
    # current folder.
    found += [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    folders = {str(Path(path).resolve()) for path in found}
    return sorted(folder for folder in folders if os.path.isdir(folder))


def _enter_namespaces() -> None:
    """A network and System V objects of its own, both empty. A user needs a user namespace for it, which
    only a process with one thread may enter. Raises OSError.
    """
    flags = _CLONE_NEWNET | _CLONE_NEWIPC
    # Root in a container may lack the capability and still have user namespaces.
    _call("unshare", flags, or_else=flags | _CLONE_NEWUSER)


def _drop_capabilities() -> None:
    """Also those that a user namespace gave. Fails nowhere: to have none is always allowed."""
    if sys.platform == "linux":
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        _call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))


def _call(name: str, *arguments: Any, or_else: int | None = None) -> None:
    """Calls a function of the C library that returns 0 or sets errno; raises OSError."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) == 0 or (or_else is not None and function(or_else) == 0):
        return
    error = ctypes.get_errno()
    raise OSError(error, os.strerror(error))


def _fault_in_child(function: Callable[[], None]) -> str | None:
    """What goes wrong when a forked child calls it; None when nothing does."""
    pid = os.fork()
    if pid == 0:
        code = 255
        try:
            function()
            code = 0
        except OSError as error:
            code = min(error.errno or 255, 255)
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 0:
        return None
    return os.strerror(code) if 0 < code < 255 else "not on this platform"


def _address_space_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


def _lower_limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _die_with(parent_pid: int) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)) == 0


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
