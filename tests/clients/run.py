"""Let clients that nobody here wrote use a real server: `python tests/clients/run.py [NAME ...]`.

Each has an environment of its own under `build/clients`, made of `requirements/NAME.txt` on first use, and a
server of its own. What it is used for is in `check_NAME.py`, which runs in its environment; what nobody could
have answered from this machine does not leave it. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from xml.etree import ElementTree as ET

import msgspec

from vidette.models import resolve
from vidette.models.load import load_tokenizer
from vidette.models.tokenizer import BPETokenizer

CLIENTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "openai": (),
        "anthropic": (),
        "litellm": (),
        "langchain-openai": (),
        "llm": (),
        "schemathesis": ("--kv-tokens", "64"),
        "lm-eval": (),
        "guidellm": (),
        "aiperf": (),
    }
)
"""Each with options of its server."""
MODEL = "smollm2-135m-instruct"
HERE = Path(__file__).parent
BUILD = Path("build/clients")
READY_LINE = re.compile(r"^vidette serves \S+ on (http://\S+)$", re.MULTILINE)
READY_SECONDS = 120.0
STOP_SECONDS = 30.0
CHECK_SECONDS = 900.0
"""How long all checks of a client may take."""


class Check(NamedTuple):
    """What a client was used for, and how that went."""

    name: str
    seconds: float
    outcome: str
    """"passed", "failed" or "skipped"; of the last, the reason follows."""


class Result(NamedTuple):
    """How it went with a client."""

    client: str
    version: str
    checks: list[Check]
    seconds: float

    def count(self, outcome: str) -> int:
        """Return how many checks have ended so."""
        return sum(check.outcome.startswith(outcome) for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether none has failed, and some have not."""
        return self.count("passed") > 0 and self.count("failed") == 0


def main() -> int:
    """Run the checks of the clients that are named, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("clients", nargs="*", metavar="NAME", help=f"of {', '.join(CLIENTS)} (default: all)")
    named = parser.parse_args().clients or [*CLIENTS]
    if unknown := {*named} - {*CLIENTS}:
        parser.error(f"there is no client {min(unknown)!r} among them")
    tokenizer = write_tokenizer(BUILD.resolve() / "tokenizer")
    results = []
    for client in named:
        python = environment(client)
        print(f"--- {client} {version_of(client)}", flush=True)
        results.append(run(client, python, tokenizer))
        for check in results[-1].checks:
            print(f"{check.seconds:8.1f} s  {check.name}: {check.outcome}", flush=True)
    print(f"\n{'client':18}{'version':12}{'passed':>7}{'failed':>7}{'skipped':>8}{'seconds':>9}")
    for each in results:
        counts = "".join(f"{each.count(name):7}" for name in ("passed", "failed"))
        print(f"{each.client:18}{each.version:12}{counts}{each.count('skipped'):8}{each.seconds:9.1f}")
    return 0 if all(each.passed for each in results) else 1


def requirements_of(client: str) -> Path:
    """Return what the environment of a client is made of: itself first."""
    return HERE / "requirements" / f"{client}.txt"


def version_of(client: str) -> str:
    """Return the version of a client that is asked for."""
    return requirements_of(client).read_text().split(maxsplit=1)[0].partition("==")[2]


def environment(client: str) -> Path:
    """Return the Python of a client's environment, made anew if what it is made of has changed."""
    folder, wanted = BUILD.resolve() / client, requirements_of(client)
    python, stamp = folder / "bin" / "python", folder / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"--- installing {client} into {folder}", flush=True)
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", folder])
        quietly = ["--disable-pip-version-check", "--no-input", "--quiet"]
        subprocess.check_call([python, "-m", "pip", *quietly, "install", "--requirement", wanted])
        shutil.copyfile(wanted, stamp)
    return python


def write_tokenizer(folder: Path) -> Path:
    """Write the model's tokenizer, which its GGUF file describes, as benchmarks load one; return where."""
    tokenizer = load_tokenizer(resolve(MODEL))
    assert isinstance(tokenizer, BPETokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer._tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(config))
    return folder


def run(client: str, python: Path, tokenizer: Path) -> Result:
    """Run the checks of a client against a server of its own."""
    scratch = BUILD.resolve() / f"{client}.scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    report = scratch / "report.xml"
    command: list[str | Path] = [python, "-m", "pytest", "-q", "-c", HERE / "checks.ini", f"--rootdir={HERE}"]
    command += [f"--confcutdir={HERE}", f"--junit-xml={report}", f"--basetemp={scratch / 'tmp'}"]
    command += [HERE / f"check_{client.replace('-', '_')}.py"]
    began = time.monotonic()
    with served(scratch / "server.log", *CLIENTS[client]) as url:
        variables = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(scratch),
            "VIDETTE_URL": url,
            "VIDETTE_MODEL": MODEL,
            "VIDETTE_TOKENIZER": str(tokenizer),
            # Nothing has to be fetched, and nobody told. Port 9 discards: what tries all the same, fails.
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost"),
            **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1"),
        }
        with (scratch / "output.txt").open("wb") as output:
            try:
                status = subprocess.call(
                    command, env=variables, stdout=output, stderr=subprocess.STDOUT, timeout=CHECK_SECONDS
                )
            except subprocess.TimeoutExpired:
                status = -1
    checks = read_report(report) if report.exists() else []
    if status != 0:
        sys.stdout.write((scratch / "output.txt").read_text(errors="replace"))
        if all(check.outcome != "failed" for check in checks):
            checks.append(Check(f"all of them (exit status {status})", 0.0, "failed"))
    return Result(client, version_of(client), checks, time.monotonic() - began)


def read_report(report: Path) -> list[Check]:
    """Return what pytest reports; an error beside a check makes it a failed one."""
    checks = {}
    for case in ET.parse(report).iter("testcase"):
        name = case.get("name", "").removeprefix("check_").replace("_", " ")
        outcome = "passed"
        for inside in case:
            if inside.tag in ("failure", "error"):
                outcome = "failed"
            elif inside.tag == "skipped":
                outcome = f"skipped, {inside.get('message', '')}"
        if name not in checks or outcome == "failed":
            checks[name] = Check(name, float(case.get("time", 0)), outcome)
    return list(checks.values())


@contextmanager
def served(log: Path, *options: str) -> Generator[str]:
    """Run `vidette serve` while the block runs; yields its address."""
    command = [sys.executable, "-m", "vidette.cli", "serve", "--port", "0", "--model", MODEL, *options]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr) as server,
    ):
        try:
            end = time.monotonic() + READY_SECONDS
            while (ready := READY_LINE.search(log.read_text())) is None:
                if server.poll() is not None or time.monotonic() > end:
                    sys.exit(f"the server is not ready: {log.read_text()}")
                time.sleep(0.05)
            yield ready[1]
            server.send_signal(signal.SIGINT)
            if status := server.wait(STOP_SECONDS):
                sys.exit(f"the server ended with exit status {status}: {log.read_text()}")
        finally:
            server.kill()  # it has ended, unless something went wrong


if __name__ == "__main__":
    sys.exit(main())
