"""The public test kit: what we test the engine with, for those who build on it.

- `quiescence`  `assert_quiescent`, `wait_quiescent`: nothing is held anywhere
- `sweep`       `sweep`: an operation is cancelled at its first checkpoint, at its second, at every one
- `storm`       `python -m vidette.testing.storm`: many requests, many of them left at random moments
- `crash`       `python -m vidette.testing.crash`: a process is killed, and streams go on
- `report`      the JSON that commands print with `--json`
"""

from vidette.testing.quiescence import assert_quiescent as assert_quiescent
from vidette.testing.quiescence import wait_quiescent as wait_quiescent
from vidette.testing.sweep import sweep as sweep
