"""Closes the verifier process, and more tightly each child that scores. Completions are hostile, and
some of reasoning-gym's scorers evaluate them as code.

Promises, as far as the machine has the layers: after `close_process` this process opens no socket,
starts no program, and reads no file outside Python's own libraries; after `close_child` the child
moreover cannot fork, signal, or use more memory, processor time or files than it is given. What a
machine lacks is said, not fatal. Works as root and as a user. Linux; elsewhere only limits remain.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

_DENIED_IN_PROCESS = (
    "socket socketpair connect bind listen accept accept4 execve execveat ptrace process_vm_readv "
    "process_vm_writev process_madvise pidfd_getfd io_uring_setup bpf perf_event_open userfaultfd mount "
    "umount2 move_mount open_tree fsopen fsmount pivot_root chroot unshare setns open_by_handle_at "
    "name_to_handle_at keyctl add_key request_key init_module finit_module delete_module kexec_load "
    "kexec_file_load reboot swapon swapoff acct quotactl settimeofday clock_settime sethostname "
    "setdomainname iopl ioperm personality shmget shmat msgget semget mq_open memfd_create"
)
"""System calls, by name, that the closed process has no use for."""

_ALLOWED_IN_CHILD = (
    "read readv pread64 write writev lseek close fstat newfstatat stat lstat statx open openat readlink "
    "readlinkat access faccessat faccessat2 getdents64 getcwd mmap munmap mprotect mremap brk madvise "
    "futex rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack clock_gettime clock_getres clock_nanosleep "
    "nanosleep gettimeofday time getrandom getpid getppid gettid getuid geteuid getgid getegid exit "
    "exit_group sched_yield sched_getaffinity sysinfo uname getrusage times poll ppoll select pselect6 "
    "restart_syscall rseq set_robust_list membarrier setitimer getitimer alarm"
)
"""All that a scoring child may ask of the system. Opening is left to Landlock to judge."""


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
        _die_with(parent_pid)
        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CPU: cpu_seconds}
        if self.address_space_bytes:
            limits[resource.RLIMIT_AS] = self.address_space_bytes + memory_bytes
        # With a layer missing no descriptor can be added: neither a socket nor a file.
        limits[resource.RLIMIT_NOFILE] = 4 if self.missing else 64
        for kind, value in limits.items():
            _lower_limit(kind, value)
        if self.child_filter is not None:
            self.child_filter.load()


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
        child_filter = _close_system_calls()
        layers.append("seccomp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        missing.append(f"seccomp: {_one_line(error)}")
    try:
        _close_files()
        layers.append("landlock")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        missing.append(f"landlock: {_one_line(error)}")
    return Sandbox(tuple(layers), tuple(missing), address_space_bytes, child_filter)


def _close_system_calls() -> Any:
    import pyseccomp

    refuse = pyseccomp.ERRNO(errno.EPERM)
    child = pyseccomp.SyscallFilter(refuse)
    _add_rules(child, pyseccomp.ALLOW, _ALLOWED_IN_CHILD)
    process = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    _add_rules(process, refuse, _DENIED_IN_PROCESS)
    process.load()
    return child


def _add_rules(rules: Any, action: int, names: str) -> None:
    for name in names.split():
        # Some names do not exist on each architecture or in an older libseccomp.
        with contextlib.suppress(OSError):
            rules.add_rule(action, name)


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
    folders = {str(Path(sysconfig.get_path(name)).resolve()) for name in names}
    return sorted(folder for folder in folders if os.path.isdir(folder))


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
