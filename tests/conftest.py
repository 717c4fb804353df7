import sys
from pathlib import Path

# random_models is imported by its name, from tests of several rooms.
sys.path.insert(0, str(Path(__file__).parent))
