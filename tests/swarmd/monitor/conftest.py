import sys
from pathlib import Path

# sample_status is imported by its name.
sys.path.insert(0, str(Path(__file__).parent))
