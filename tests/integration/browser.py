"""A page in headless Chromium, driven by its DevTools protocol over a pipe."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]


class Page:
    """A file in a tab of its own; ``events`` are what the browser said of it, above all errors and requests."""

    def __init__(self, path: Path, profile: Path):
        assert CHROMIUM
        theirs_in, self.out = os.pipe()
        self.read, theirs_out = os.pipe()

        def as_three_and_four():  # what the protocol reads and writes
            ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
            for end, number in zip(ends, (3, 4), strict=True):
                os.dup2(end, number)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, close_fds=False, preexec_fn=as_three_and_four, **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self.numbers, self.rest, self.session = itertools.count(1), b"", {}
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def run(self, script: str) -> Any:
        """The value of a script."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def close(self) -> None:
        os.close(self.out)
        os.close(self.read)
        self.process.kill()
        self.process.wait()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.rest:
            added = os.read(self.read, 1 << 16)
            assert added, "the browser ended"
            self.rest += added
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)
