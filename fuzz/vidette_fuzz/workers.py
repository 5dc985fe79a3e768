"""Explores many configurations at once, each in a process of its own, within one budget.

A process explores one configuration and prints one line of JSON: `python -m vidette_fuzz.workers NAME ...`.
Small ones come to their end early and leave their share to the others.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import vidette_fuzz.stepping
import vidette_protocol
from vidette_fuzz.configurations import CONFIGURATIONS
from vidette_fuzz.explore import Exploration, Maker, SavedByAnother, Search, explore


class Outcome(NamedTuple):
    """What became of a configuration.

    Args:
        name: of the configuration.
        whole: states of the short form, which is explored first, if these are all; else 0.
        states: different worlds of the long form that are known, those of former runs included; if the short
            form did not come to its end, those of that.
        new: worlds found in this run, of whatever form.
        depth: actions up to which everything is known.
        complete: whether that is all.
        seconds: time this run took.
        loading: time it took before to walk again what was saved.
        story: of the shortest run that breaks a rule; None if none was found.
    """

    name: str
    whole: int
    states: int
    new: int
    depth: int
    complete: bool
    seconds: float
    loading: float
    story: str | None = None

    def __str__(self) -> str:
        """Return it as a line."""
        whole = f"all {self.whole} states of the short form; " if self.whole else ""
        reach = "all of them" if self.complete else f"all up to depth {self.depth}"
        speed = self.new / self.seconds if self.seconds > 0 else 0.0
        found = "" if self.story is None else "; A RULE IS BROKEN"
        return f"{self.name}: {whole}{self.states} states, {reach}, {speed:.0f} a second{found}"


def explore_all(
    budget_s: float,
    *,
    names: Sequence[str] = tuple(CONFIGURATIONS),
    workers: int | None = None,
    saved: Path | None = None,
    report: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Explore configurations: each to its end in its short form, then the long one as far as the time allows.

    Args:
        budget_s: seconds for all together; what it takes to load what was saved is not counted.
        names: of the configurations.
        workers: processes at a time; None: one for each core.
        saved: a file; what it holds is gone on with, and how far it came is written there in the end.
        report: called with each outcome, as it comes.

    Returns:
        Outcomes in the order of the names.

    Raises:
        WorkerFailed: a process did not say what it found.
        SavedByAnother: what was saved does not fit.
    """
    workers = min(workers or os.cpu_count() or 1, len(names))
    end = time.monotonic() + budget_s
    lock = threading.Lock()
    waiting = len(names)

    def one(name: str, place: Path) -> Outcome:
        nonlocal waiting, end
        with lock:
            left = max(0.0, end - time.monotonic())
            until = time.monotonic() + min(left, left * workers / waiting)
            waiting -= 1
        outcome = _run([name, f"--until={until}", *([f"--state={place}"] if saved is not None else [])])
        with lock:
            end += outcome.loading / workers
            report(outcome)
        return outcome

    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder, f"{number}.search") for number in range(len(names))]
        if saved is not None and saved.exists():
            _unpack(saved, dict(zip(names, places, strict=True)))
        with ThreadPoolExecutor(workers) as pool:
            outcomes = list(pool.map(one, names, places))
        if saved is not None:
            _pack(saved, dict(zip(names, places, strict=True)))
    return outcomes


class WorkerFailed(RuntimeError):  # noqa: N818  what it is told
    """A process that explores ended without a word of what it found."""


def _run(arguments: list[str]) -> Outcome:
    command = [sys.executable, "-m", "vidette_fuzz.workers", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  ourselves
    if done.returncode == _SAVED_BY_ANOTHER:
        raise SavedByAnother(done.stderr.strip())
    if done.returncode:
        raise WorkerFailed(f"{arguments[0]}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    return Outcome(**json.loads(done.stdout.splitlines()[-1]))


def _pack(saved: Path, places: dict[str, Path]) -> None:
    """Put the searches into one file, which takes the place of the old one when it is whole."""
    new = saved.with_name(saved.name + ".new")
    with zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, place in places.items():
            if place.exists():
                archive.write(place, name)
    new.replace(saved)


def _unpack(saved: Path, places: dict[str, Path]) -> None:
    with zipfile.ZipFile(saved) as archive:
        for name in places.keys() & set(archive.namelist()):
            places[name].write_bytes(archive.read(name))


def fingerprint(make: Maker) -> str:
    """Return what tells a world from others: its bounds, and the source of all it is made of."""
    import vidette.scheduler  # noqa: PLC0415  it takes longer than many a search

    digest = hashlib.sha256(re.sub(" at 0x[0-9a-f]+", "", repr(make)).encode())
    for package in (vidette_protocol, vidette_fuzz.stepping, vidette.scheduler):
        for path in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Explore one configuration, its short form first, and print what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--until", type=float, help="on the monotonic clock, which all processes share")
    parser.add_argument("--state", type=Path)
    options = parser.parse_args(arguments)
    configuration = CONFIGURATIONS[options.name]
    if not configuration.heavy:
        gc.disable()  # worlds have no cycles, and there are very many of them
    began = time.monotonic()
    if options.state is None or not options.state.exists():
        whole = explore(configuration.short, budget_s=_left(options.until))
        if not whole.complete:
            _print(options.name, whole, whole=0, before=0, seconds=time.monotonic() - began)
            return 0
        states = whole.states
        search, loading = Search(configuration.long), 0.0
    else:
        states = 0
        search = Search(configuration.long)
        try:
            search.load(options.state, fingerprint(configuration.long))
        except SavedByAnother as error:
            print(error, file=sys.stderr)
            return _SAVED_BY_ANOTHER
        loading = time.monotonic() - began
    before = search.result.states
    most = _MOST_HEAVY if configuration.heavy else None
    found = search.run(max_states=most, budget_s=_left(options.until + loading))
    if options.state is not None and found.violation is None:
        search.save(options.state, fingerprint(configuration.long))
    seconds = time.monotonic() - began - loading
    _print(options.name, found, whole=states, before=before, seconds=seconds, loading=loading)
    return 0


def _left(until: float) -> float:
    return max(_LEAST_SHARE_S, until - time.monotonic())


def _print(
    name: str, found: Exploration, *, whole: int, before: int, seconds: float, loading: float = 0.0
) -> None:
    story = None if found.violation is None else str(found.violation)
    new = whole + found.states - before
    outcome = Outcome(name, whole, found.states, new, found.depth, found.complete, seconds, loading, story)
    print(json.dumps(outcome._asdict()))


_LEAST_SHARE_S: Final = 0.1
"""However small the budget is, each configuration gets so far."""
_MOST_HEAVY: Final = 200_000
"""States after which a search of heavy worlds stops: those whose followers are unknown take 20 KiB each."""
_SAVED_BY_ANOTHER: Final = 3
"""Exit status of a process that was told to go on from a search that is not its own."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
