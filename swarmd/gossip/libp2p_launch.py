"""Becomes p2pd, tied to the life of the daemon. Run as a script: PARENT_PID P2PD ARGUMENTS...

On Linux the kernel kills p2pd when the daemon ends, however it ends, so no orphan keeps a port or
an identity. It imports two modules only: it runs before every start of p2pd.
"""

import os
import sys

_SET_PARENT_DEATH_SIGNAL = 1
_SIGKILL = 9


def main() -> None:
    """Tie this process to its parent, then replace it by p2pd."""
    parent_pid = int(sys.argv[1])
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, _SIGKILL)
    # The parent may have died before the signal was set.
    if os.getppid() != parent_pid:
        sys.exit("the parent process is gone")
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
