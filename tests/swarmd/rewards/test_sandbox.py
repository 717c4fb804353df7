"""Each attempt runs in a Python of its own that closes itself: closing cannot be undone."""

import errno
import json
import os
import subprocess
import sys
import textwrap

import pytest

from swarmd.rewards.sandbox import LAYERS

# Another user. The capability lets it read an interpreter that root has installed, and more than it should.
_READS_ALL = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
_OTHER_USER = ("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", *_READS_ALL)
USERS = {"self": (), **({"another": _OTHER_USER} if os.geteuid() == 0 else {})}

_REPORT = """
import ctypes, json, os, socket, sys
from swarmd.rewards.sandbox import close_process

def call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = getattr(libc, name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result

def attempt(function):
    try:
        return repr(function())
    except BaseException as error:
        return type(error).__name__
"""

_IN_CHILD = """
sandbox = close_process()
read_fd, write_fd = os.pipe()
parent = os.getpid()
pid = os.fork()
if pid == 0:
    os.dup2(write_fd, 3)
    os.closerange(4, 100)
    sandbox.close_child(50_000_000, 2, parent)
    os.write(3, json.dumps({name: attempt(function) for name, function in attempts.items()}).encode())
    os._exit(0)
os.close(write_fd)
os.waitpid(pid, 0)
print(os.read(read_fd, 10_000).decode())
"""


def _run(*parts, user="self"):
    code = _REPORT + "\n".join(textwrap.dedent(part) for part in parts)
    command = [*USERS[user], sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_all_layers_that_this_kernel_has_are_reported():
    report = _run(
        """
        sandbox = close_process()
        print(json.dumps({"layers": sandbox.layers, "missing": sandbox.missing}))
        """
    )
    assert {"rlimits", "no_new_privs"} <= set(report["layers"])
    named = set(report["layers"]) | {line.split(":")[0] for line in report["missing"]}
    assert named == set(LAYERS)


@pytest.mark.parametrize("user", USERS)
def test_closed_process_reaches_no_network_no_files_and_starts_no_program(tmp_path, user):
    secret = tmp_path / "identity.key"
    secret.write_text("secret")
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o777)
    secret.chmod(0o666)
    report = _run(
        f"""
        secret = {str(secret)!r}
        attempts = {{
            "socket": lambda: socket.socket(),
            "unix": lambda: socket.socket(socket.AF_UNIX),
            "exec": lambda: os.execv("/bin/true", ["true"]),
            "read": lambda: open(secret).read(),
            "write": lambda: open(secret, "w").write("gone"),
            "remove": lambda: os.remove(secret),
            "create": lambda: open(secret + ".new", "w").write("new"),
            "change": lambda: os.chmod(secret, 0o600),
            "shared memory": lambda: os.listdir("/dev/shm"),
            "watch": lambda: call("inotify_init"),
            "memory of others": lambda: open(f"/proc/{{os.getppid()}}/mem", "rb").read(1),
            "environment of others": lambda: open(f"/proc/{{os.getppid()}}/environ").read(),
            "import": lambda: __import__("sndhdr" if sys.version_info < (3, 13) else "tabnanny").__name__,
        }}
        close_process()
        print(json.dumps({{name: attempt(function) for name, function in attempts.items()}}))
        """,
        user=user,
    )
    imported = report.pop("import")
    assert imported.strip("'") in ("sndhdr", "tabnanny")  # Libraries stay readable: scorers import late.
    assert set(report.values()) == {"PermissionError"}
    assert secret.read_text() == "secret"
    assert not (tmp_path / "identity.key.new").exists()


@pytest.mark.parametrize("user", USERS)
def test_scoring_child_moreover_cannot_fork_signal_trace_or_raise_its_limits(user):
    report = _run(
        """
        import resource, signal, threading
        attempts = {
            "fork": os.fork,
            "kill": lambda: os.kill(os.getppid(), signal.SIGTERM),
            "thread": lambda: threading.Thread(target=print).start(),
            "limits": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
            "setuid": lambda: os.setuid(12345),
            "chmod": lambda: os.chmod("/", 0o755),
            "socket": lambda: socket.socket(),
            "dup": lambda: os.dup(3),
            "trace": lambda: call("ptrace", 16, os.getppid(), 0, 0),
            "memory of the parent": lambda: open(f"/proc/{os.getppid()}/mem", "rb").read(1),
            "environment of the parent": lambda: open(f"/proc/{os.getppid()}/environ").read(),
            "own environment": lambda: open("/proc/self/environ").read(),
            "shared memory": lambda: os.listdir("/dev/shm"),
            "watch": lambda: call("inotify_init"),
            "namespace": lambda: call("unshare", 0x10000000),
            "privileges": lambda: call("prctl", 8, 1, 0, 0, 0),
            "anonymous file": lambda: os.memfd_create("x"),
            "home": lambda: os.chdir("/"),
            "memory": lambda: len(bytearray(400_000_000)),
            "still works": lambda: sum(range(10)),
        }
        """,
        _IN_CHILD,
        user=user,
    )
    assert report.pop("memory") == "MemoryError"
    assert report.pop("still works") == "45"
    assert report.pop("thread") == "RuntimeError"
    # Raising a limit is a ValueError where Python words it so.
    assert report.pop("limits") in ("PermissionError", "ValueError")
    assert set(report.values()) == {"PermissionError"}


def test_child_of_a_machine_without_layers_gets_no_new_descriptors():
    report = _run(
        """
        from swarmd.rewards.sandbox import Sandbox
        attempts = {"socket": lambda: socket.socket(), "file": lambda: open("/etc/passwd").read()}
        close_process = lambda: Sandbox((), ("seccomp: none", "landlock: none"), 0)
        """,
        _IN_CHILD,
    )
    assert report == {"socket": "OSError", "file": "OSError"}


@pytest.mark.parametrize("module", ["pyseccomp", "landlock"])
def test_a_missing_layer_is_said_and_the_others_still_close(module):
    report = _run(
        f"""
        sys.modules[{module!r}] = None
        sandbox = close_process()
        print(json.dumps({{
            "layers": sandbox.layers, "missing": sandbox.missing,
            "socket": attempt(socket.socket), "file": attempt(lambda: open("/etc/passwd").read()),
        }}))
        """
    )
    layer = "seccomp" if module == "pyseccomp" else "landlock"
    assert layer in [line.split(":")[0] for line in report["missing"]]
    assert layer not in report["layers"]
    assert (report["socket"] == "PermissionError") == (layer != "seccomp")
    assert (report["file"] == "PermissionError") == (layer != "landlock")


def test_system_calls_by_another_table_of_numbers_end_the_child():
    report = _run(
        """
        sandbox = close_process()
        pid = os.fork()
        if pid == 0:
            # The x32 numbers: 41 is socket.
            ctypes.CDLL(None).syscall(0x40000000 + 41, 2, 1, 0)
            os._exit(0)
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        """
    )
    assert report == -31  # SIGSYS


def test_inside_a_container_that_forbids_namespaces_and_landlock_the_filter_still_closes():
    report = _run(
        """
        import pyseccomp
        container = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for number in (444, 445, 446):  # landlock
            container.add_rule(pyseccomp.ERRNO(38), number)
        container.add_rule(pyseccomp.ERRNO(1), "unshare")
        container.load()
        sandbox = close_process()
        attempts = {"socket": socket.socket, "fork": os.fork, "file": lambda: open("/etc/passwd").read()}
        close_process = lambda: sandbox
        """,
        _IN_CHILD.replace("json.dumps({", "json.dumps({'missing': sandbox.missing, **{").replace(
            "items()}", "items()}}"
        ),
    )
    assert [line.split(":")[0] for line in report.pop("missing")] == ["landlock", "namespaces"]
    assert report == {"socket": "PermissionError", "fork": "PermissionError", "file": "OSError"}


def test_without_the_filter_a_namespace_keeps_the_network_away():
    report = _run(
        """
        sys.modules["pyseccomp"] = None
        sandbox = close_process()
        if "namespaces" not in sandbox.layers:
            print(json.dumps("no such layer here"))
            sys.exit()
        pid = os.fork()
        if pid == 0:
            os.closerange(3, 100)
            sandbox.close_child(50_000_000, 2, os.getppid())
            os._exit(socket.socket().connect_ex(("127.0.0.1", 9)) % 256)
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        """
    )
    # Not even the loopback device is up.
    assert report in (errno.ENETUNREACH, "no such layer here")


def test_child_exits_when_its_parent_is_gone():
    code = textwrap.dedent(
        """
        import os
        from swarmd.rewards.sandbox import Sandbox
        Sandbox((), (), 0).close_child(1, 1, parent_pid=1 if os.getppid() != 1 else 2)
        print("still here")
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
