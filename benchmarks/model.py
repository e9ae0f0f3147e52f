"""The demo's model, which benchmarks use: converted once into the user's cache."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "engines" / "models" / "prepare.sh"


def model_dir() -> Path:
    """Its directory; made when it is not there. What the script has to say goes to standard error."""
    done = subprocess.run([str(SCRIPT), sys.executable], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip().splitlines()[-1])
