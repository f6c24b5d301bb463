"""The command rounds alike on every x86 processor; what it is made of otherwise keeps the processor's own kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsvi_bench.arithmetic import KERNELS_VARIABLE, PORTABLE, arithmetic, use_portable_arithmetic
from fsvi_bench.errors import InputError
from fsvi_bench.leaderboard.rerun.jail import environment
from fsvi_bench.running.archive import read_archive
from fsvi_bench.running.grid import decisive_sha256
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


@pytest.mark.usefixtures("bare")
def test_what_the_user_says_is_kept(monkeypatch):
    assert arithmetic() == {}
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "")  # so that what is set below is undone
    assert arithmetic() == {"MKL_CBWR": "AVX2"}
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    use_portable_arithmetic()
    assert arithmetic() == {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "AVX2"}


@pytest.mark.usefixtures("bare")
def test_an_empty_word_says_nothing(monkeypatch):
    for name in PORTABLE:
        monkeypatch.setenv(name, "")
    use_portable_arithmetic()
    assert arithmetic() == PORTABLE


@pytest.mark.usefixtures("bare")
def test_kernels_are_portable_or_the_processors_own(monkeypatch):
    monkeypatch.setenv("FSVI_BENCH_KERNELS", "own")
    use_portable_arithmetic()
    assert arithmetic() == {}
    monkeypatch.setenv("FSVI_BENCH_KERNELS", "fast")
    with pytest.raises(InputError, match="FSVI_BENCH_KERNELS is 'fast', expected 'portable'"):
        use_portable_arithmetic()
    told = subprocess.run([sys.executable, "-m", "fsvi_bench", "status"], capture_output=True, text=True)
    assert (told.returncode, told.stderr.count("\n")) == (2, 1)
    assert told.stderr.startswith("fsvi-bench: FSVI_BENCH_KERNELS is 'fast'")


@pytest.mark.usefixtures("bare")
def test_records_of_other_kernels_are_other_cells(monkeypatch):
    own = decisive_sha256("a" * 64)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert decisive_sha256("a" * 64) != own


def test_a_re_run_in_the_jail_takes_the_verifiers_kernels(monkeypatch):
    for name, value in PORTABLE.items():
        monkeypatch.setenv(name, value)
    made = environment()
    assert {name: made[name] for name in PORTABLE} == PORTABLE


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("before", ["", "import torch; "])
def test_libraries_heed_switches_that_are_set_before_the_first_computation(before):
    code = f"{before}from fsvi_bench.arithmetic import use_portable_arithmetic as use; use(); {CAPABILITY}; {PRODUCT}"
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
@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_command_and_its_workers_take_them_and_records_say_so(tmp_path, workers):
    options = ["--dataset", "toy", "--splits", "0-1", "--method", "rand-a", "--method", "ssge", "--max-steps", "3"]
    where = ["--measurement-points", "10", "--wandb", "off", "--workers", workers, "--out", str(tmp_path)]
    command = [sys.executable, "-m", "fsvi_bench", "run", *options, *where]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, "MKL_VERBOSE": "1"})
    products = [line for line in said.stdout.splitlines() if "MKL_VERBOSE D" in line]
    assert products
    assert all("CNR:COMPATIBLE" in line for line in products)
    told = {record.provenance["arithmetic"] for record in read_archive(tmp_path).records}
    assert told == {"ATen DEFAULT, MKL COMPATIBLE"}  # the first as a worker finds it


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("bare")
def test_a_line_search_ends_on_the_digits_of_other_processors():
    """As on an AMD EPYC and on an Intel Xeon (torch 2.13.0); with their own kernels the two ended 11 % (full) and 2 % (ffg) apart."""
    task = ROOT / "datasets" / "yacht" / "tasks" / "v1" / "split-00.safetensors"
    command = [sys.executable, str(ROOT / "benchmarks" / "rerun_tolerance.py"), str(task)]
    lines = subprocess.run(
        [*command, "--steps", "300", "--method", "fixed-a", "--here"],
        check=True, capture_output=True, text=True, env={**os.environ, **PORTABLE},
    ).stdout.splitlines()  # fmt: skip
    found = {family: kl for _, _, family, kl in map(json.loads, lines)}
    assert found == {"full": 779.9866881827405, "ffg": 579.2802584954301}
