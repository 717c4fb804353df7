"""One row for each round of each node, and the Parquet files that hold them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["SCHEMA", "Row", "read_rows", "write_rows"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one round brought one node. Round 0 is the start, before any training: it has the evaluation
    only. Null (None) where nothing was measured.
    """

    arm: str = ""
    learning_rate: float = 0.0
    seed: int = 0
    node: int
    kind: str
    """late: an honest node that joined after the start. Else as `NodePlan.kind` has it."""
    model: str = ""
    """What the node started from. Empty where that was not written down."""
    round: int
    virtual_seconds: float
    """End of the round, in rounds of a node of speed 1."""
    wall_seconds: float = 0.0
    """Time that sampling and training took. The only column that is not the same when a run is repeated."""
    own_reward: float | None = None
    """Mean reward of the own groups sampled in this round, none left out."""
    own_reward_by_task: dict[str, float] = {}
    groups_generated: int = 0
    """Own groups sampled in this round."""
    own_groups_with_signal: int = 0
    """Those of them whose rewards differ."""
    tokens_generated: int = 0
    """Tokens sampled in this round, evaluation apart."""
    entropy: float | None = None
    """Nats a token: mean surprise of this round's own samples under the policy that sampled them."""
    completion_tokens: float | None = None
    """Mean length of this round's own completions."""
    groups_own: int = 0
    """Own groups in the batch, those that stand in for external ones included."""
    groups_external: int = 0
    groups_filled: int = 0
    """Own groups in the batch that stand in for external ones."""
    groups_with_signal: int = 0
    """Groups of the batch whose rewards differ."""
    external_reward: float | None = None
    """Mean reward of the groups received in this round, those without signal included."""
    updates: int = 0
    """Optimizer steps from the start to the end of this round."""
    policy_version: int = 0
    grad_norm: float | None = None
    mean_ratio: float | None = None
    clipped_share: float | None = None
    dropped_share: float | None = None
    effective_share: float | None = None
    heldout_reward: float | None = None
    """Mean reward on the held-out tasks at the end of this round, where it was measured."""
    heldout_by_task: dict[str, float] = {}
    payload_share: float | None = None
    """Part of this round's own completions with what nodes of the kind `payload` want to teach."""


_FLOAT_MAP = pa.map_(pa.string(), pa.float64())
_TYPES = {
    "str": pa.string(),
    "int": pa.int64(),
    "float": pa.float64(),
    "float | None": pa.float64(),
    "dict[str, float]": _FLOAT_MAP,
}
SCHEMA = pa.schema([(name, _TYPES[Row.__annotations__[name]]) for name in Row.__struct_fields__])
_NEVER_TWICE = ["entropy", "grad_norm", "effective_share"]
"""Columns that hardly say a number twice: smaller with their bytes sorted by place than as a dictionary."""


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a file that is there whole or not at all. Raises OSError."""
    columns = {
        name: [list(value.items()) if isinstance(value, dict) else value for value in values]
        for name, values in ((name, [getattr(row, name) for row in rows]) for name in Row.__struct_fields__)
    }
    temporary = path.with_suffix(".partial")
    pq.write_table(
        pa.table(columns, schema=SCHEMA),
        temporary,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in SCHEMA.names if name not in _NEVER_TWICE],
        use_byte_stream_split=_NEVER_TWICE,
    )
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file. Raises OSError, and pyarrow.ArrowException for a file that is damaged."""
    found = pq.read_table(path, schema=SCHEMA).to_pylist(maps_as_pydicts="strict")
    # A column that is younger than the file is null, and then has its default.
    return [Row(**{name: value for name, value in row.items() if value is not None}) for row in found]
