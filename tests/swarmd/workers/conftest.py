import sys
from pathlib import Path

# child_worker is imported by its name, both by the tests and by the processes they start.
sys.path.insert(0, str(Path(__file__).parent))
