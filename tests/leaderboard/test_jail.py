"""What an entry's code can do in the jail: train, and nothing else; and jails that do not hold."""

import contextlib
import importlib.util
import os
import pickle
import re
import stat
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.edition import Place
from fsvi_bench.leaderboard.jailed import confinement
from fsvi_bench.leaderboard.jailed import jail as jails
from fsvi_bench.leaderboard.jailed import sandbox as sandboxes
from fsvi_bench.leaderboard.jailed.jail import Jail, require_jail
from fsvi_bench.leaderboard.jailed.messages import Job, Message
from fsvi_bench.leaderboard.jailed.run import Limits, require_conformance
from fsvi_bench.leaderboard.jailed.sandbox import closed_sandbox
from fsvi_bench.leaderboard.ranked_tasks import make_task
from fsvi_bench.methods.problems import TrainingData
from fsvi_bench.tasks.official import load_task
from tests.leaderboard.boards import SECRET, edition, entry
from tests.leaderboard.jailing import run, shared, source, working_jail  # noqa: F401 -- a fixture of every test

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task():
    return load_task("diabetes")


def test_code_that_does_nothing_wrong_runs(task):
    found = run(source(), task)
    assert (found.status, found.reason) == ("ok", None)
    assert found.isolation.startswith("bubblewrap, ")
    assert "seccomp" in found.isolation


ROOT = Path(jails.__file__).parents[3]
#: What is tried -> what it says if it got through.
TRIES = {
    "a socket": "import socket; socket.socket()",
    "a socket pair": "import socket; socket.socketpair()",
    "a fork": "import os; os.fork()",
    "a program": "import os; os.execv('/bin/true', ['true'])",
    "a process": "import subprocess; subprocess.run(['/bin/true'])",
    "a signal to its parent": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
    "the memory of process 1": "open('/proc/1/mem', 'rb')",
    "the memory of process 1, for writing": "import os; os.open('/proc/1/mem', os.O_RDWR)",
    "the environment of process 1": "open('/proc/1/environ', 'rb')",
    "the memory of its parent": "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
    "a signal by its pipe": "import fcntl, os; r, w = os.pipe(); fcntl.fcntl(r, fcntl.F_SETOWN, os.getppid())",
    "flags of an open file": "import fcntl, os; fcntl.fcntl(2, fcntl.F_SETFL, os.O_DIRECT)",
    "space on a disk": "import fcntl; fcntl.ioctl(2, 0x40305828, bytes(48))",
    "its scheduling group": "import os; os.open('/proc/self/autogroup', os.O_WRONLY)",
    "a device, for writing": "import os; os.open('/dev/null', os.O_WRONLY)",
    "what libraries have left": "import os; os.listdir('/tmp/.cache')",
    "the files of its parent": "import os; os.listdir(f'/proc/{os.getppid()}/fd')",
    "a socket of its parent": "import os; assert any(os.path.exists(f'/proc/self/fd/{n}') and 'socket' in os.readlink(f'/proc/self/fd/{n}') for n in range(3, 200))",
    "a signal to itself": "import os, signal; os.kill(os.getpid(), signal.SIGCONT)",
    "a file": "open('/tmp/file', 'w')",
    "a file of the next job": "open('/tmp/job/next', 'w')",
    "a writable file of its own": "import os; os.chmod(__file__, 0o666)",
    "a folder": "import os; os.mkdir('/tmp/folder')",
    "a kernel setting": "open('/proc/sys/kernel/hostname', 'w').write('x')",
    "a change of its own file": "open(__file__, 'a')",
    "shared memory": "import os; os.memfd_create('x')",
    "the data sets": f"open({str(ROOT / 'datasets/boston/card.yaml')!r})",
    "the methods' configuration": f"open({str(ROOT / 'conf/methods/rand-a.yaml')!r})",
    "the leaderboard": f"import os; os.listdir({str(ROOT / 'leaderboard')!r})",
    "a home": f"import os; os.listdir({str(Path.home() / '.ssh')!r})",
    "a longer limit": "import resource as r; r.setrlimit(r.RLIMIT_CPU, (10**6, 10**6))",
    "debugging": "import ctypes; assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0",
    "a namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "a look into the jail's own environment": "assert b'TOKEN' in open('/proc/1/environ', 'rb').read()",
    "results": f"open({str(ROOT / 'leaderboard/editions/v2/edition.toml')!r})",
    "a list of data sets": f"import os; os.listdir({str(ROOT / 'datasets')!r})",
    "the raw data": f"import os; os.listdir({os.environ.get('FSVI_BENCH_DATA', '/nonexistent')!r})",
    "more than its own processes": "import os; assert sum(name.isdigit() for name in os.listdir('/proc')) > 2",
    "a link out": "import os; os.symlink('/etc/passwd', '/tmp/link')",
    "a FIFO": "import os; os.mkfifo('/tmp/fifo')",
    "a thousand open pipes": "import os; [os.pipe() for _ in range(1000)]",
    "an address": "import socket; socket.create_connection(('1.1.1.1', 53), timeout=1)",
    "another user": "import os; os.setuid(0)",
    "a priority": "import os; os.nice(-5)",
    "a mount": "import ctypes; assert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, 0) == 0",
}


def test_nothing_else_can_be_done(task):
    """All in one run, each caught by itself: what got through is in the reason."""
    body = f"""
    through = []
    for what, code in {TRIES!r}.items():
        try:
            exec(code, {{"__file__": __file__}})
            through.append(what)
        except (OSError, ValueError, AssertionError, AttributeError):
            pass
    raise RuntimeError("got through: " + repr(through))
    """
    found = run(source(body), task)
    assert (found.status, found.reason) == ("failed", "RuntimeError: got through: []")


def test_the_environment_reveals_nothing(task, monkeypatch, here):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    found = run(source("import os; raise RuntimeError(' '.join(sorted(os.environ)))"), task)
    assert "WANDB" not in found.reason
    assert "SSH" not in found.reason


def test_it_has_the_training_rows_and_nothing_of_the_test_rows(task):
    found = run(source("import os; raise RuntimeError(str(sorted(os.listdir(os.path.dirname(__file__)))))"), task)
    assert found.reason == "RuntimeError: ['method.py']"


def test_its_problem_holds_no_more_than_it_shows():
    """A tensor that is a view of another would take the whole of it along, test targets of the model for one."""
    made, _ = make_task(Place("ranked", "diabetes", 4), edition(), SECRET)
    job = pickle.dumps(Job("method.py:M", source(), "full", {}, TrainingData.of(made).only(0), 1, 0, 1, 1, None, 1))
    problem = pickle.loads(job).problem
    tensors = [problem.X, problem.y, problem.Phi, problem.low, problem.high, *problem.feature_map.tensors.values()]
    assert all(each.untyped_storage().nbytes() == each.nbytes for each in tensors)
    assert problem.y.equal(made.y[None])
    assert made.y_test.numpy().tobytes()[:80] not in job


def test_a_strict_umask_of_the_verifier_does_not_matter(task, here):
    before = os.umask(0o077)
    try:
        assert run(source(), task).status == "ok"
    finally:
        os.umask(before)


def test_what_it_says_in_the_end_is_quoted_and_however_long_it_is(task):
    code = source("import os\nos.write(2, b'x' * 2**19)\nos.write(2, b'\\x1b[2J<b>last words')\nos._exit(3)")
    reason = run(code, task).reason
    assert reason.startswith("it ended with status 3 before it had sent its posterior; the last line of its output: ")
    assert "\x1b" not in reason
    assert len(reason) < 300


#: Tells when the process started that has forked this one, in ticks since the system's start.
PARENT = "import os; raise RuntimeError(open(f'/proc/{os.getppid()}/stat').read().split()[21])"


def test_a_process_that_has_imported_the_libraries_runs_one_job_after_another(task, here):
    """Until it ends, which a job does not notice. Another entry has another process."""
    first, second = (run(source(PARENT), task).reason for _ in range(2))
    assert re.fullmatch(r"RuntimeError: \d+", first)
    assert first == second
    assert run(source(PARENT, "# another entry\n"), task).reason != first
    first = run(source(PARENT), task).reason
    ended = sandboxes._kept.sandbox._process
    ended.kill()
    ended.wait()
    assert run(source(PARENT), task).reason != first


def test_a_job_does_not_affect_the_next_one(task, here):
    """Neither modules, random numbers, settings or files that it has changed, nor threads that it has left."""
    code = source("""
    import numpy as np, os, random, threading, time
    from fsvi_bench.methods import base
    if self.seeds[0] == 1:
        torch.set_default_dtype(torch.float16); torch.set_num_threads(3)
        torch.manual_seed(1); np.random.seed(1); random.seed(1)
        base.Method.families = ("none",)
        os.environ["SPOILT"] = "yes"
        threading.Thread(target=time.sleep, args=(999,)).start()
        raise RuntimeError("spoilt")
    seen = [torch.get_default_dtype(), torch.get_num_threads(), base.Method.families, os.environ.get("SPOILT"),
            threading.active_count(), os.listdir("/tmp"), os.listdir("/tmp/job"), torch.rand(1)]
    raise RuntimeError(f"{seen}; {random.random()}; {np.random.random()}")
    """)
    (seen, *drawn), kept = run(code, task).reason.split("; "), sandboxes._kept.sandbox
    assert run(code, task, seed=1).reason == "RuntimeError: spoilt"
    seen_after, *drawn_after = run(code, task).reason.split("; ")
    assert sandboxes._kept.sandbox is kept
    assert seen == seen_after
    assert not set(drawn) & set(drawn_after)


def test_a_jobs_own_exit_status_is_reported(task):
    """A shell, and bubblewrap of itself, would mean a signal by 137; and no status is that of an earlier job."""
    code = source("import os; os._exit(137) if self.seeds[0] else os.closerange(0, 200); import time; time.sleep(99)")
    assert "it ended with status 137 before" in run(code, task, seed=1).reason
    assert "it closed its pipe without ending before" in run(code, task).reason


def test_calls_are_open_outside():
    """What a jailed process asks once its filter should be there; one without a filter runs nothing of an entry."""
    assert confinement.calls_are_open()


HOPELESS = {
    "loops at import": source(before="while True: pass\n"),
    "loops in its method": source("while True: pass"),
    "ignores signals and sleeps": source("import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (15, 1, 2)]; time.sleep(999)"),
    "allocates memory": source("x = [bytearray(2**28) for _ in range(100)]"),
    "recurses": source("import sys; sys.setrecursionlimit(10**9); f = lambda n: f(n + 1); f(0)"),
    "ends its process": source("import os; os._exit(0)"),
    "closes its pipes": source("import os, time; os.closerange(0, 200); time.sleep(999)"),
    "loops as it ends": source(before="import atexit\n", body="class Late:\n    def __del__(self):\n        while True: pass\nself.late = Late(); del self.late"),
    "loops in posterior()": source().replace(b"    def solve", b"    def posterior(self):\n        while True: pass\n\n    def solve"),
    "raises what cannot be said": source("class E(Exception):\n    def __str__(self): raise SystemExit\nraise E"),
    "exits": source("raise SystemExit(0)"),
    "prints to stderr without end": source("import os\nwhile True: os.write(2, b'x' * 2**20)"),
    "starts threads without end": source("import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(999,)).start()"),
    "allocates by mapping": source("import mmap\nx = [mmap.mmap(-1, 2**28) for _ in range(100)]\nfor each in x: each[:] = bytes(2**28)"),
    "returns what a pickle would run": source("class R:\n    def __reduce__(self): return exit, (0,)\nreturn R()"),
    "sends rubbish": source("import os\nfor fd in range(3, 50):\n    try: os.write(fd, b'rubbish' * 10)\n    except OSError: pass\nimport time; time.sleep(999)"),
    "sends without end": source("import os\nwhile True:\n    for fd in range(3, 50):\n        try: os.write(fd, b'\\0' * 8 + b'x' * 2**20)\n        except OSError: pass"),
    "is no Python": b"class M(:",
    "has no class": b"class N: ...",
    "is another family's": source().replace(b"FullGaussian(mean, torch.diag_embed(torch.ones_like(mean)))",
                                            b"__import__('fsvi_bench').FactorisedGaussian(mean, torch.ones_like(mean))"),
    "has another size": source().replace(b"torch.zeros_like(problem.Phi[:, 0])", b"torch.zeros(1, 3, dtype=torch.float64)"),
}  # fmt: skip


def forged(words):
    return SimpleNamespace(model_dump_json=lambda: words)


#: What the entry's code says in the worker's name, all at once -> what the verifier makes of it.
FORGED = {
    "a second start": (Message(status="ready"), "'ready', which is out of order"),
    "more steps than declared": (
        Message(status="under way", steps=10**9),
        "after 1000000000 steps, which is out of order",
    ),
    "steps beyond its own": (Message(status="ok", steps=10**6), "after 1000000 steps, which is out of order"),
    "negative steps": (forged('{"status":"ok","steps":-1}'), "sent an invalid message"),
    "seconds of its own": (forged('{"status":"ok","steps":1,"seconds":-5.0}'), "sent an invalid message"),
    "NaN for steps": (forged('{"status":"ok","steps":NaN}'), "sent an invalid message"),
    "another event": (forged('{"status":"checked"}'), "sent an invalid message"),
    "no posterior": (Message(status="ok", steps=1), "cannot be read"),
}


#: A job is an open file; with it come its pipe and its stderr.
RECEIVE = "pipe = socket.recv_fds(socket.socket(fileno=int(sys.argv[-1])), 1, 3)[1][1]"


class Saying:
    """A jail that does not hold: no code of the entry is run, and what it would send is sent at once."""

    bwrap, words = None, "none"

    def __init__(self, said: bytes):
        self.said = said

    def command(self, *_):
        program = f"import os, socket, sys, time; {RECEIVE}; os.write(pipe, {self.said}); time.sleep(999)"
        return [sys.executable, "-S", "-c", program]


@pytest.mark.parametrize(("message", "why"), FORGED.values(), ids=FORGED)
def test_a_forged_message_is_not_believed(task, message, why):
    ready = Message(status="ready").model_dump_json()
    found = run(source(), task, Saying(f"{ready}\n{message.model_dump_json()}\n".encode()))
    assert (found.status, why in found.reason) == ("failed", True)


def test_a_message_forged_in_the_process_is_not_believed(task):
    """The entry's code has the process to itself, our modules and the pipe included."""
    body = """
    import os, stat, time
    from fsvi_bench.leaderboard.jailed.messages import Message, send
    for fd in map(int, os.listdir('/proc/self/fd')):
        try:
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                send(fd, Message(status='ready', leaks=['x']))
        except OSError:
            pass
    time.sleep(999)
    """
    found = run(source(body), task)
    assert (found.status, "'ready', which is out of order" in found.reason) == ("failed", True)


def test_modules_of_ours_that_it_changes_are_changed_in_its_process_alone(task):
    """Checks that it switches off there are made again here."""
    body = """
    import __main__ as worker
    worker.defect = worker.divergence = lambda *a: None
    worker.posterior_file = lambda q: b'\\xff' * 100
    """
    assert "cannot be read" in run(source(body), task).reason


def test_a_reason_is_told_on_one_line_without_markup(task):
    found = run(source("raise RuntimeError('<b>\\n\\x1b[2J' + chr(0x202e) + 'x' * 5000)"), task)
    assert found.reason.isprintable()
    assert "<" not in found.reason
    assert len(found.reason) <= 303


#: What nothing but the clock ends; the rest ends by itself or by another limit, and endless recursion by either.
ENDLESS = [name for name in HOPELESS if name.startswith(("loops", "ignores", "sends rubbish"))]
EITHER = ["recurses"]


@pytest.mark.parametrize("name", HOPELESS)
def test_hopeless_code_fails_within_its_limits(task, name):
    found = run(HOPELESS[name], task, seconds=3.0 if name in ENDLESS + EITHER else 30.0)
    assert found.status == "failed"
    assert name in EITHER or ("did not finish within" in found.reason) == (name in ENDLESS), found.reason
    assert "\n" not in found.reason


def test_background_processes_end_with_the_jail(task, here):
    """Threads, `atexit` and `__del__` have no time after the final message."""
    before = """
    import atexit, threading, time
    class Late:
        def __del__(self): time.sleep(999)
    late = Late()
    atexit.register(time.sleep, 999)
    """
    code = source("import threading, time; threading.Thread(target=time.sleep, args=(999,)).start()", before)
    for _ in range(2):  # a process that is left would be another process of the second run, which is a leak
        assert run(code, task).status == "ok"


@pytest.fixture
def here(monkeypatch):
    """A folder of this test's own for the temporary files of runs, and a sandbox of its own.

    At the end neither a file may be left, nor a process. Those that were killed take a moment to end, if there are
    hundreds of threads among them.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(sandboxes, "_kept", sandboxes._Kept())
        others = jailed(os.getpid())
        with closed_sandbox():
            yield Path(folder)
            started = jailed(os.getpid()) - others
        assert started
        deadline = time.monotonic() + 10
        while left := [pid for pid in started if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)
        assert list(Path(folder).iterdir()) == []


def jailed(ancestor):
    """Processes with the libraries for jobs, or of jobs, which this one or one of its own has started."""
    parents, workers = {}, set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            workers |= {int(path.name)} if b"jailed.worker" in (path / "cmdline").read_bytes() else set()
    below = {ancestor}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return below & workers


def test_ten_gigabytes_of_output_fill_no_disk(task):
    assert "did not finish within" in run(source("while True: print('x' * 2**20)\n"), task, seconds=3.0).reason


def test_a_bwrap_without_isolation_is_detected(task, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift\nexec "$@"\n')
    fake.chmod(0o755)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:3]:
        parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    with pytest.raises(InputError, match=r"did not start: .*(has not isolated this process|Permission denied)"):
        run(source("raise SystemExit"), task, replace(working_jail(), bwrap=str(fake)))


def test_a_process_outside_a_jail_removes_nothing(tmp_path):
    """It clears its folder, which in a jail is that of the jail, and elsewhere may be /tmp itself."""
    (tmp_path / "job").mkdir()
    (tmp_path / "mine").touch()
    command = [sys.executable, "-m", "fsvi_bench.leaderboard.jailed.worker", str(tmp_path), "many", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "bubblewrap has not isolated this process")
    assert {path.name for path in tmp_path.iterdir()} == {"job", "mine"}


def test_without_bwrap_nothing_runs(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match="is not available; install it, or give --without-isolation"):
        require_jail()


def test_without_isolation_the_result_says_so(task):
    found = run(source(), task, Jail(None))
    assert (found.status, found.isolation) == ("ok", "none")


def test_control_groups_are_used_where_systemd_offers_them(monkeypatch, tmp_path):
    """No systemd runs on test machines: a stand-in says yes, and the command line is what is looked at."""
    monkeypatch.setattr(jails, "_has_scopes", lambda: True)
    found = Jail("bwrap", jails._has_scopes())
    command = found.command(["-c", "pass"], 2**30, tmp_path)
    assert command[0] == "systemd-run"
    assert "--property=TasksMax=512" in command
    assert f"--property=MemoryMax={5 * 2**30}" in command
    assert found.words == "bubblewrap, cgroup"


def test_systemd_run_finds_its_bus_and_the_entry_does_not(monkeypatch, tmp_path):
    """A stand-in for a desktop's `systemd-run`, which needs the bus of its user."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    program = tmp_path / "systemd-run"
    program.write_text('#!/bin/sh\n[ -n "$XDG_RUNTIME_DIR" ]\n')
    program.chmod(0o755)
    given = jails.environment
    monkeypatch.setattr(jails, "environment", lambda: given() | {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert jails._has_scopes.__wrapped__()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert not jails._has_scopes.__wrapped__()
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert jails.environment()["XDG_RUNTIME_DIR"] == "/run/user/1000"
    command = Jail("bwrap", True).command(["-c", "pass"], 2**30, tmp_path)
    assert command[command.index("XDG_RUNTIME_DIR") - 1] == "--unsetenv"


def test_the_jail_is_never_started_as_root(monkeypatch, tmp_path):
    monkeypatch.setattr(jails.os, "geteuid", lambda: 0)
    command = Jail("bwrap").command(["-c", "pass"], 2**30, tmp_path)
    assert command[0] == "unshare"
    assert "setpriv --reuid=65534" in next(word for word in command if "setpriv" in word)
    assert command.index("bwrap") > command.index("unshare")


def test_a_slow_entry_does_not_affect_another_one(task, here):
    """Two runs at once: threads of the one, memory and its end are its own; what is behind it in the queue is run."""
    hog = source(
        "import threading, time\nfor _ in range(300):\n    threading.Thread(target=time.sleep, args=(99,)).start()\ntime.sleep(99)"
    )
    with ThreadPoolExecutor(2) as pool:
        slow, honest = pool.submit(run, hog, task, seconds=6.0), pool.submit(run, source(), task, seconds=60.0)
        assert honest.result().status == "ok"
        assert slow.result().status == "failed"
    assert run(source(), task, seconds=60.0).status == "ok"


FILLING = """
import os
class M(Method):
    made, wrote = [], 0
    try:
        for number in range(100_000):
            with open(f"/tmp/{number}", "wb") as stream:
                wrote += stream.write(bytes(2**16))
            made.append(number)
    except OSError:
        pass
    raise RuntimeError(f"{len(made)} files, {wrote} bytes")
"""


def test_files_that_checks_may_write_are_few_bytes_and_stay_in_the_jail(task):
    """Conformance alone writes at all; its scratch folder holds 16 MiB, and goes with the jail."""
    code = source().split(b"class M")[0] + FILLING.encode()
    with pytest.raises(InputError, match="files") as error:
        require_conformance(entry("hostile", code, settings={}), working_jail(), Limits(memory=2 * 2**30))
    files, written = map(int, re.search(r"(\d+) files, (\d+) bytes", str(error.value)).groups())
    assert 0 < files < 300
    assert written <= 2**24 + 2**16


def test_a_library_of_one_file_shows_the_folder_that_holds_it():
    (folder,) = {Path(each.origin).parent for each in [importlib.util.find_spec("pyseccomp")]}
    assert folder in jails._library_folders()
    assert folder.parent not in jails._library_folders()


def test_a_secret_must_not_be_where_the_jail_shows_it(tmp_path):
    """Beside the code of the package, say; its own data there are hidden."""
    jails.require_hidden(require_jail(), [tmp_path / "secret", None, jails.resource_dir("datasets") / "boston"])
    for shown in (jails.PACKAGE / "secret", Path(sys.prefix) / "key"):
        with pytest.raises(InputError, match=r"which the sandbox shows to the entry; move it elsewhere"):
            jails.require_hidden(require_jail(), [shown])
        jails.require_hidden(Jail(None), [shown])
