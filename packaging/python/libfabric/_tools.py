"""Start of a tool of the library, such as fi_info, by its name."""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> NoReturn:
    """Replaces this process by the tool named like the running script."""
    name = Path(sys.argv[0]).name
    os.execv(Path(__file__).parent / "bin" / name, [name, *sys.argv[1:]])
