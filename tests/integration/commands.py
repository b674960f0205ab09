"""Running fairseq's commands as a user does, on data made here."""

import random
import subprocess
import sys
from pathlib import Path

USER_DIR = Path(__file__).resolve().parents[2] / "fairseq_diverse"

TINY = (
    "--arch diverse_transformer_tiny --share-all-embeddings --dropout 0.1 --optimizer adam --lr 0.005 --label-smoothing 0.1 "
    "--max-tokens 200 --cpu --seed 1 --num-workers 0 --log-format json --log-interval 1 --no-progress-bar "
    "--criterion label_smoothed_cross_entropy"
)


def run(
    tool: str, *args: object, user_dir: bool = True, check: bool = True, **options
) -> subprocess.CompletedProcess[str]:
    """``fairseq-<tool> args...`` in a process of its own."""
    command = [sys.executable, "-m", f"fairseq_cli.{tool}", *map(str, args)]
    if user_dir:
        command += ["--user-dir", str(USER_DIR)]
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if check and result.returncode:
        raise AssertionError(f"{' '.join(command)} failed:\n{result.stdout[-3000:]}\n{result.stderr[-3000:]}")
    return result


def make_data(folder: Path, sentences: int = 60, seed: int = 0) -> Path:
    """A binarized corpus of a language whose translation is its reversal; the folder for fairseq-train."""
    numbers = random.Random(seed)
    for split, count in (("train", sentences), ("valid", 8), ("test", 8)):
        lines = [" ".join(f"w{numbers.randrange(12)}" for _ in range(numbers.randint(3, 9))) for _ in range(count)]
        (folder / f"{split}.en").write_text("\n".join(lines) + "\n")
        (folder / f"{split}.de").write_text("\n".join(" ".join(line.split()[::-1]) for line in lines) + "\n")
    prefs = [f"--{split}pref={folder / split}" for split in ("train", "valid", "test")]
    run(
        "preprocess", "-s", "en", "-t", "de", *prefs, "--joined-dictionary", "--destdir", folder / "bin", user_dir=False
    )
    return folder / "bin"
