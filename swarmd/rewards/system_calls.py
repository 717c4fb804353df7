"""The system-call filters of scoring: what the verifier process gives up, and the little that a
scoring child keeps. Loaded with libseccomp, which children inherit and nothing can take back.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Any

_DENIED_IN_PROCESS = (
    "socket socketpair connect bind listen accept accept4 execve execveat ptrace process_vm_readv "
    "process_vm_writev process_madvise process_mrelease pidfd_getfd pidfd_open pidfd_send_signal kcmp "
    "io_uring_setup bpf perf_event_open userfaultfd inotify_init inotify_init1 fanotify_init mount umount2 "
    "move_mount open_tree fsopen fsmount pivot_root chroot setns open_by_handle_at name_to_handle_at keyctl "
    "add_key request_key init_module finit_module delete_module kexec_load kexec_file_load reboot swapon "
    "swapoff acct quotactl settimeofday clock_settime sethostname setdomainname iopl ioperm personality "
    "shmget shmat msgget semget mq_open memfd_create memfd_secret "
    "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr removexattr "
    "lremovexattr fremovexattr utime utimes futimesat utimensat truncate ftruncate fallocate mknod mknodat "
    "mkdir mkdirat rmdir link linkat symlink symlinkat unlink unlinkat rename renameat renameat2 creat"
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


def close_system_calls() -> Any:
    """Loads the process's filter for this thread and all that it forks; returns the children's, to load.

    Raises ImportError, OSError, RuntimeError or AttributeError where there is no seccomp to be had.
    """
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
