"""What floods cost a node of its rate of rounds: real nodes, whose training steps take half a second, and an
attacker on real p2pd. 1 is nothing; 0.9 is promised where the machine has processor to spare.

    python tests/benchmarks/measure_floods.py
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from hostile import floods
from hostile.stage import Attacker, set_the_stage


def main() -> None:
    """Print the rate under attack as a part of the rate without."""
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as name:
        folder = Path(name)
        (folder / "attacker").mkdir()
        attacker = Attacker(folder / "attacker")
        try:
            with set_the_stage(folder, attacker) as stage:
                floods.appear(stage)
                part = stage.keeps_its_rate(lambda seconds: floods.begin(stage, seconds))
                print(
                    f"rounds under floods of {sum(rate for _, rate in floods.FLOODS.values()):g} messages/s:"
                )
                print(f"{part:.2f} of the rate without")
        finally:
            attacker.close()


if __name__ == "__main__":
    main()
