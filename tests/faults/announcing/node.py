"""A real node that tells what it is at: `python tests/faults/announcing/node.py start ...`

While it generates, trains, publishes weights or saves, a file of that name is in the folder ANNOUNCEMENTS
(environment). Publishing and saving are slowed a little, since a kill would hardly ever meet them on a model
of one million parameters. Nothing else differs from `swarmd`: the modules beside this one wrap its own.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))

from wrapped_node import run_node  # The folder has to be on the path first.

if __name__ == "__main__":
    run_node(
        Path(__file__).parent,
        {
            "swarmd.entrypoints.generator": "announcing_generator",
            "swarmd.entrypoints.trainer": "announcing_trainer",
        },
    )
