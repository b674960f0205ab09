"""`fairseq-diverse run --slurm` with substitutes for SLURM's programs, which run the jobs of an array at once."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_diverse.support.processes import locked
from fairseq_diverse.syntax.trees import read_conllu
from tests.integration.commands import cli
from tests.integration.test_parse import MODELS, needs_models
from tests.integration.test_run import UPDATES, call, directory, folder, summary  # noqa: F401

PROGRAMS = {
    "sbatch": """
script=${@: -1}
cp "$script" "$SLURM_LOG/script"
tasks=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\)%.*/\\1/p' "$script")
for task in $(seq 0 "$tasks"); do
    "$SLURM_LOG/start" "$task"
done
echo Submitted batch job 42
""",
    "start": """
SLURM_JOB_ID=42_$1 SLURM_ARRAY_JOB_ID=42 SLURM_ARRAY_TASK_ID=$1 SLURM_LOCALID=0 SLURM_PROCID=0 SLURM_NTASKS=1 \\
    SLURM_JOB_NUM_NODES=1 SLURM_NODEID=0 SLURM_JOB_NODELIST=here \\
    setsid bash "$SLURM_LOG/script" >>"$SLURM_LOG/job-$1.log" 2>&1 </dev/null &
""",
    "squeue": """
cat "$SLURM_LOG/queue" 2>/dev/null
""",
    "srun": """
while [[ $1 != */python* ]]; do shift; done
exec "$@"
""",
    "scontrol": """
echo "$@" >>"$SLURM_LOG/requeued"
[[ $1 != requeue ]] || "$SLURM_LOG/start" "${2#*_}"
""",
}


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("SLURM_LOG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def wait_for(what, process_log: Path) -> None:
    for _ in range(6000):
        if what():
            return
        time.sleep(0.1)
    pytest.fail(process_log.read_text() if process_log.exists() else "nothing was started")


def test_an_array_of_jobs_one_of_which_is_stopped_and_resumes(folder, slurm, tmp_path):  # noqa: F811
    runs = tmp_path / "runs"
    asked = ["run", folder / "table.yaml", "--rows", "baseline", "--seeds", "1,2", "--jobs", 2]
    asked += ["--set", "generate.lenpen=1", "--set", "average.last=0", "--slurm"]
    queued = call(runs, *asked, "partition=gpu", "cpus-per-task=3")
    jobs = re.findall(r"^baseline seed (\d): job (42_\d), ", queued.stdout, re.MULTILINE)
    assert jobs == [("1", "42_0"), ("2", "42_1")]
    script = (slurm / "script").read_text()
    for option in ("array=0-1%2", "partition=gpu", "cpus-per-task=3", "time=1440"):
        assert f"#SBATCH --{option}\n" in script

    first = lambda: directory(runs, "baseline")  # noqa: E731
    log = slurm / "job-0.log"
    wait_for(lambda: list(runs.glob("*/seed1/train.log")) and "train_inner" in (first() / "train.log").read_text(), log)
    pattern = f"^{re.escape(sys.executable)} -u -m submitit.core._submit"
    pids = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True, check=True).stdout.split()
    own = {b"SLURM_ARRAY_TASK_ID=0", f"SLURM_LOG={slurm}".encode()}
    (stopped,) = [pid for pid in pids if own <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))]
    os.kill(int(stopped), signal.SIGUSR2)
    wait_for(lambda: (slurm / "requeued").exists(), log)
    assert (slurm / "requeued").read_text() == "requeue 42_0\n"
    wait_for(lambda: len(list(runs.glob("*/seed?/summary.json"))) == 2, log)
    assert summary(runs, "baseline")["updates"] == UPDATES
    environment = (first() / "environment.txt").read_text()
    assert "# OMP_NUM_THREADS=1\n" in environment and re.search(r"^torch==", environment, re.MULTILINE)
    assert call(runs, *asked).stdout.startswith("0 runs queued, 2 done before")


def test_what_is_queued_is_not_queued_again(folder, slurm, tmp_path):  # noqa: F811
    """Jobs wait until the queue of this test, a file, no longer has their numbers. Nor is what a process works on."""
    (slurm / "start").write_text("#!/bin/bash\n")
    runs, asked = tmp_path / "runs", ["run", folder / "table.yaml", "--rows", "baseline", "--slurm"]
    assert "1 runs queued, 0 done before" in call(runs, *asked, "--seeds", 1).stdout
    (slurm / "queue").write_text("7\n42\n")
    more = call(runs, *asked, "--seeds", "1,2")
    assert more.stderr == "baseline seed 1: is queued as job 42\n"
    assert "1 runs queued, 1 queued or at work, 0 done before" in more.stdout and "baseline seed 2: job" in more.stdout
    (slurm / "queue").write_text("7\n")
    assert "2 runs queued, 0 done before" in call(runs, *asked, "--seeds", "1,2").stdout
    with locked(first := directory(runs, "baseline")):
        more = call(runs, *asked, "--seeds", "1,2")
    assert more.stderr == f"baseline seed 1: a process is working on {first}\n"
    assert "1 runs queued, 1 queued or at work, 0 done before" in more.stdout and "baseline seed 2: job" in more.stdout


@needs_models
def test_shards_of_a_text_are_parsed_and_joined(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRSEQ_DIVERSE_RUNS", str(tmp_path / "runs"))
    (tmp_path / "text").write_text("a dog runs .\nthe man said well .\nHello .\n")
    asked = ["parse", "--kind", "dependency", "--model", MODELS["dependency"], "--input", tmp_path / "text"]
    asked += ["--out", tmp_path / "trees", "--workers", 1]
    queued = cli(*asked, "--shards", 2, "--slurm", "partition=cpu", "time=10")
    assert queued.stdout.splitlines()[:2] == ["shard 1/2: job 42_0", "shard 2/2: job 42_1"]
    wait_for((tmp_path / "trees").exists, slurm / "job-0.log")
    assert [sentence.words[-1] for sentence in read_conllu(tmp_path / "trees")] == ["."] * 3
    assert cli(*asked, "--shard", "1/2", "--join").stdout == f"{tmp_path}/trees: there already\n"


def test_a_wrong_option_and_no_slurm_are_one_line(folder, request, tmp_path):  # noqa: F811
    def error(*settings):
        asked = ("run", folder / "table.yaml", "--rows", "baseline", "--slurm", *settings)
        return call(tmp_path / "runs", *asked, fails=2).stderr

    assert 'Could not detect "srun"' in error()
    request.getfixturevalue("slurm")
    for setting, message in ("gpu", "--slurm gpu: write an option of sbatch as name=value"), ("nosuch=1", "nosuch"):
        assert message in (said := error(setting)) and said.count("\n") == 1
