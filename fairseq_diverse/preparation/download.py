"""Downloads of archives; an interrupted download is resumed."""

from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

from fairseq_diverse.preparation.progress import INTERVAL

TIMEOUT = 60  # seconds without data
CHUNK = 1 << 20


def fetch(
    archives: dict[str, str], by_hand: dict[str, str], folder: Path, download: bool = True, what: str = "archive"
) -> None:
    """Download the archives that are missing in ``folder``; ``by_hand`` has those that a user must download.

    An archive is downloaded as ``NAME.part`` (an existing part is continued) and renamed when it is complete. Nothing
    is downloaded while an archive that must be downloaded by hand is missing. Raises ``ValueError``: archives are
    missing and cannot or must not be downloaded; lists them with their addresses.
    """
    absent, why = [name for name in (*archives, *by_hand) if not (folder / name).is_file()], ""
    if download and absent and by_hand.keys().isdisjoint(absent):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            while absent:
                _download(archives[absent[0]], folder / absent[0])
                absent.pop(0)
        except (OSError, HTTPException) as error:  # URLError is an OSError
            why = f" ({absent[0]}: {getattr(error, 'reason', None) or error})"
    if absent:
        addresses = {name: f"by hand: {page}" for name, page in by_hand.items()} | archives
        listed = [f"  {name}  {addresses[name]}" for name in absent]
        files = f"1 {what} is" if len(absent) == 1 else f"{len(absent)} {what}s are"
        raise ValueError("\n".join([f"{files} missing{why}; put into {folder.resolve()}:", *listed]))


def _download(address: str, path: Path) -> None:
    part = path.with_name(f"{path.name}.part")
    try:
        _append(address, part)
    except HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # not shorter than the archive: not its beginning
        _append(address, part)
    part.replace(path)


def _append(address: str, part: Path) -> None:
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fairseq-diverse"} | ({"Range": f"bytes={start}-"} if start else {})
    with urlopen(Request(address, headers=headers), timeout=TIMEOUT) as answer:
        start = start if answer.status == 206 else 0
        length = answer.headers["Content-Length"]
        total = start + int(length) if length else None
        with (
            open(part, "ab" if start else "wb") as f,
            tqdm(desc=part.stem, total=total, initial=start, unit="B", unit_scale=True, mininterval=INTERVAL) as bar,
        ):
            while chunk := answer.read(CHUNK):
                f.write(chunk)
                bar.update(len(chunk))
    size = part.stat().st_size
    if total is not None and size != total:
        raise OSError(f"the connection ended after {size:,} of {total:,} bytes; a new run resumes from there")
