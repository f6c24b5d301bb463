"""Where two machines must agree, the command rounds alike on every x86 processor; else it takes the processor's own kernels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from fsvi_bench.arithmetic import KERNELS_VARIABLE, PORTABLE, arithmetic, kernels_of_protocol, use_kernels
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.jailed.jail import environment
from fsvi_bench.running.plan import Protocol, load_protocol, protocols
from fsvi_bench.running.provenance import decisive_sha256
from fsvi_bench.running.store import Store
from tests.requirements import skip_or_fail

ROOT = Path(__file__).parents[1]
CAPABILITY = "import torch; print(torch.backends.cpu.get_cpu_capability())"
PRODUCT = "a = torch.ones(64, 64, dtype=torch.float64); a @ a"


@pytest.fixture(autouse=True)
def has_switches():
    if not torch.backends.mkl.is_available():
        skip_or_fail("this torch has no MKL, whose switches these are")


@pytest.fixture
def bare(monkeypatch):
    """Nothing is said in the environment."""
    for name in (*PORTABLE, KERNELS_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def processor_flags():
    """What the processor can do, where the system says it."""
    path = Path("/proc/cpuinfo")
    return set(path.read_text().split()) if path.is_file() else set()


def python(code, **environment):
    """What a fresh interpreter prints."""
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env={**os.environ, **environment}
    ).stdout


@pytest.fixture
def early(bare, monkeypatch):
    """As in a process that has not imported torch."""
    monkeypatch.delitem(sys.modules, "torch")
    for name in PORTABLE:
        monkeypatch.setenv(name, "")  # so that what a test sets is undone


@pytest.mark.usefixtures("early")
@pytest.mark.parametrize(
    ("asked", "said", "taken"),
    [
        ("own", None, {}),
        ("portable", None, PORTABLE),
        ("own", "portable", PORTABLE),
        ("portable", "own", {}),
        ("portable", "", PORTABLE),  # an empty word says nothing
    ],
)
def test_the_environment_overrides_the_request(monkeypatch, asked, said, taken):
    if said is not None:
        monkeypatch.setenv(KERNELS_VARIABLE, said)
    use_kernels(asked)
    assert arithmetic() == taken


@pytest.mark.usefixtures("early")
def test_a_switch_that_the_user_has_set_is_kept(monkeypatch):
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    use_kernels("own")
    assert arithmetic() == {"MKL_CBWR": "AVX2"}
    use_kernels("portable")
    assert arithmetic() == {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "AVX2"}


@pytest.mark.usefixtures("bare")
def test_after_the_import_of_torch_nothing_changes_and_nothing_is_claimed():
    use_kernels("portable")
    assert arithmetic() == {}


def test_other_kernels_are_refused(bare, monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_KERNELS", "fast")
    with pytest.raises(InputError, match="FSVI_BENCH_KERNELS is 'fast', expected 'own'"):
        use_kernels()
    told = subprocess.run([sys.executable, "-m", "fsvi_bench", "status"], capture_output=True, text=True)
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert told.stderr.startswith("fsvi-bench: FSVI_BENCH_KERNELS is 'fast'")


def test_a_protocol_asks_as_its_model_says():
    """The command reads the one line of the file itself, since the model's module imports torch."""
    asked = {name: kernels_of_protocol(name) for name in protocols()}
    assert asked == {name: load_protocol(name).arithmetic for name in protocols()}
    assert {name for name, kernels in asked.items() if kernels == "portable"} == {"official"}
    assert {kernels_of_protocol(name) for name in (None, "", "none-such", "..")} == {"own"}
    with pytest.raises(ValidationError, match="arithmetic"):
        Protocol.model_validate({"summary": "s", "arithmetic": "fast"})


@pytest.mark.usefixtures("bare")
def test_records_of_other_kernels_are_other_cells(monkeypatch):
    own = decisive_sha256("a" * 64)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert decisive_sha256("a" * 64) != own


def test_a_run_in_the_jail_takes_the_verifiers_kernels(monkeypatch):
    for name, value in PORTABLE.items():
        monkeypatch.setenv(name, value)
    made = environment()
    assert {name: made[name] for name in PORTABLE} == PORTABLE


@pytest.mark.usefixtures("bare")
def test_libraries_heed_switches_that_are_set_before_torch_is_there():
    code = f"from fsvi_bench.arithmetic import use_kernels as use; use('portable'); {CAPABILITY}; {PRODUCT}"
    said = python(code, MKL_VERBOSE="1")
    assert "DEFAULT" in said.splitlines()
    products = [line for line in said.splitlines() if "DGEMM" in line]
    assert products
    assert all("CNR:COMPATIBLE" in line for line in products)


@pytest.mark.usefixtures("bare")
def test_without_switches_libraries_choose():
    said = python(f"import fsvi_bench.running.executors; {CAPABILITY}; {PRODUCT}", MKL_VERBOSE="1")
    assert "CNR:OFF" in said
    assert said.splitlines()[0] != "DEFAULT" or not {"avx2", "avx512f"} & processor_flags()


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(
    ("protocol", "workers", "kernels"),
    [("official", "2", "COMPATIBLE"), ("quick", "1", "OFF")],
)
def test_the_command_and_its_workers_take_what_the_protocol_asks_for_and_records_say_so(
    tmp_path, protocol, workers, kernels
):
    options = ["--dataset", "toy", "--splits", "0-1", "--method", "exact"]  # two families: a call for each worker
    where = ["--wandb", "off", "--workers", workers, "--out", str(tmp_path)]
    command = [sys.executable, "-m", "fsvi_bench", "run", "--protocol", protocol, *options, *where]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "MKL_VERBOSE": "1"})
    products = [line for line in done.stdout.splitlines() if "MKL_VERBOSE D" in line]
    assert products
    assert all(f"CNR:{kernels}" in line for line in products)
    (told,) = {record.provenance["arithmetic"] for record in Store(tmp_path).records}
    if kernels == "COMPATIBLE":
        assert told == "ATen DEFAULT, MKL COMPATIBLE"  # the first as a worker finds it
    else:
        assert told.endswith("MKL own")


@pytest.mark.slow
@pytest.mark.usefixtures("bare")
def test_a_command_chooses_before_torch_is_imported(tmp_path):
    """Each command ends where it asks for torch. The jailed processes inherit the choice."""
    code = (
        "import sys, fsvi_bench.cli.app as app, fsvi_bench.arithmetic as a\n"
        "assert 'torch' not in sys.modules\n"
        "class Torch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise SystemExit('torch')\n"
        "sys.meta_path.insert(0, Torch())\n"
        "try: app.main(sys.argv[1:])\n"
        "except SystemExit as end: print(end.code, a.arithmetic())"
    )
    absent = str(tmp_path / "absent")
    told = [
        subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True, text=True).stdout.strip()
        for words in (["verify", absent], ["submit", "exact"], ["score", "--task", absent, "--posterior", absent])
    ]
    assert told == [f"torch {dict(PORTABLE)}", f"torch {dict(PORTABLE)}", "torch {}"]
