import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# What several files here or another process import is imported by its name.
sys.path.append(str(Path(__file__).parent))

from channel_kind import Hammer, Kind, kill
from stand_in_gpu import use_stand_in

from swarmd.weights import cuda_ipc, file, shared_memory
from swarmd.weights.cuda_ipc import CudaIpcReader, CudaIpcWriter, Gpu
from swarmd.weights.segment import Segment


@pytest.fixture(scope="module")
def hammer() -> Iterator[Hammer]:
    hammer = Hammer()
    yield hammer
    hammer.close()


@pytest.fixture(params=[shared_memory.KIND, file.KIND, cuda_ipc.KIND])
def kind(request: pytest.FixtureRequest, tmp_path: Path, hammer: Hammer) -> Iterator[Kind]:
    torch.set_num_threads(1)
    folder = tmp_path / "weights"
    folder.mkdir()
    use_stand_in(folder)
    kind = Kind(request.param, folder, f"swarmd-test-{uuid.uuid4().hex[:8]}", hammer)
    yield kind
    CudaIpcWriter.gpu = CudaIpcReader.gpu = Gpu()
    for process in kind.processes:
        if process.is_running():
            kill(process)
    Segment.remove(kind.segment)
