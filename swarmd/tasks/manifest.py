"""A swarm's manifest: what all its nodes agree on. Its digest is the swarm id and part of every
topic name, so nodes of different manifests never mix.

A manifest may come from a peer. It is data: bounded before it is parsed, checked against a closed
set of types, and never evaluated, imported or formatted into a command.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec
from swarmd_protocol.envelope import EnvelopeLimits
from swarmd_protocol.messages import Kind
from swarmd_protocol.validation import GroupLimits

from swarmd.errors import ConfigError
from swarmd.tasks.datasets import check_dataset, nearest
from swarmd.tasks.toml_writer import write_toml
from swarmd.types import TaskSpec

REASONING_GYM_VERSION = "0.1.25"
"""The version that this release regenerates tasks with."""
MAX_TOML_BYTES = 65_536
MAX_TASKS = 128
MAX_SEED = 2**62
MAX_HELD_OUT_WIDTH = 2**32
MAX_GOSSIP_BYTES = 1_000_000
"""GossipSub does not deliver messages above 1 MiB; some room is left for its own header."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BUILT_IN_FOLDER = files("swarmd.tasks") / "manifests"


class PromptSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a question becomes a prompt: prefix + question + suffix."""

    style: Literal["plain", "chat"] = "plain"
    """plain: the text is tokenized as it stands. chat: it goes through the model's chat template."""
    system: str = ""
    """System message of the chat style. Empty: none."""
    prefix: str = ""
    suffix: str = ""


class TaskEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[tasks]]` table as it is written."""

    dataset: str
    weight: float = 1.0
    """Relative share of draws."""
    config: dict[str, object] = {}
    """Keyword arguments of the dataset. `seed` and `size` are not among them."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, dict=True):
    """What a swarm agrees on. Build one with `load` or `from_toml`, which check it."""

    name: str
    reasoning_gym: str = REASONING_GYM_VERSION
    """Version of the library that regenerates the tasks. Another one would give other questions."""
    group_size_min: int = 2
    """Fewest completions of a rollout group."""
    group_size_max: int = 64
    """Most completions of a rollout group."""
    max_new_tokens: int = 256
    """Length limit of a completion, in tokens of the node that samples it."""
    max_completion_characters: int = 8192
    """Length limit of a completion on the wire, in characters. Longer ones are refused."""
    max_message_bytes: int = 900_000
    """Size limit of one gossip message."""
    held_out: tuple[int, int] = (0, 2**20)
    """Half-open range of effective seeds (seed + index) kept for evaluation; never trained on."""
    prompt: PromptSpec = PromptSpec()
    entries: tuple[TaskEntry, ...] = msgspec.field(name="tasks")

    @staticmethod
    def built_in_names() -> tuple[str, ...]:
        """Names of the manifests that come with swarmd, sorted."""
        names = (file.name for file in _BUILT_IN_FOLDER.iterdir())
        return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))

    @staticmethod
    def built_in(name: str) -> Manifest:
        """A built-in manifest. Raises ConfigError: whoever named it may not name a file."""
        if name not in Manifest.built_in_names():
            raise ConfigError(
                f"no built-in manifest {name[:80]!r}; there are {', '.join(Manifest.built_in_names())}"
            )
        return Manifest.from_toml((_BUILT_IN_FOLDER / f"{name}.toml").read_text())

    @staticmethod
    def chosen(name_or_path: str | None, hint: str) -> Manifest:
        """That of the configuration, else the built-in one that the model names. Raises ConfigError."""
        return Manifest.load(name_or_path) if name_or_path else Manifest.built_in(hint)

    @staticmethod
    def load(name_or_path: str) -> Manifest:
        """Reads a built-in manifest by name, or a TOML file. Raises ConfigError."""
        if name_or_path in Manifest.built_in_names():
            return Manifest.built_in(name_or_path)
        path = Path(name_or_path)
        if not path.is_file():
            hint = nearest(name_or_path, Manifest.built_in_names())
            raise ConfigError(
                f"no manifest {name_or_path!r}: neither a file nor a built-in name "
                f"({', '.join(Manifest.built_in_names())}){hint}"
            )
        try:
            if path.stat().st_size > MAX_TOML_BYTES:
                raise ConfigError(f"manifest {path}: larger than {MAX_TOML_BYTES} bytes")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"manifest {path}: cannot be read: {error}") from error
        try:
            return Manifest.from_toml(text)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @staticmethod
    def from_toml(text: str) -> Manifest:
        """Parses and checks. Raises ConfigError naming the key, and nothing else, whatever the text."""
        if len(text.encode("utf-8", "surrogatepass")) > MAX_TOML_BYTES:
            raise ConfigError(f"manifest: larger than {MAX_TOML_BYTES} bytes")
        try:
            tables = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"manifest: not TOML: {_one_line(error)}") from error
        for key in tables:
            if key not in _TOP_LEVEL_KEYS:
                raise ConfigError(f"manifest: unknown key {_short(key)}{nearest(key, _TOP_LEVEL_KEYS)}")
        try:
            manifest = msgspec.convert(tables, Manifest)
        except (msgspec.ValidationError, RecursionError) as error:
            raise ConfigError(f"manifest: {_readable(error)}") from error
        _check(manifest)
        return manifest

    def to_toml(self) -> str:
        """The manifest with every value written out. `from_toml` of it gives an equal manifest."""
        return write_toml(msgspec.to_builtins(self))

    @cached_property
    def tasks(self) -> tuple[TaskSpec, ...]:
        """The tasks with the digests that references name."""
        return tuple(
            TaskSpec(
                dataset=entry.dataset,
                config=entry.config,
                weight=entry.weight,
                digest=task_digest(entry.dataset, entry.config, self.reasoning_gym),
            )
            for entry in self.entries
        )

    @cached_property
    def task_digests(self) -> Mapping[str, str]:
        """Dataset name to the config digest that a reference to it must carry."""
        return {task.dataset: task.digest for task in self.tasks}

    def group_limits(self, max_age_seconds: float, max_skew_seconds: float) -> GroupLimits:
        """What a rollout group of this swarm may be, for a node that takes messages up to this age and
        up to this far from the future.
        """
        return GroupLimits(
            group_size_min=self.group_size_min,
            group_size_max=self.group_size_max,
            max_completion_characters=self.max_completion_characters,
            max_completion_tokens=self.max_new_tokens + 1,
            task_digests=self.task_digests,
            held_out=self.held_out,
            max_age_ms=int(max_age_seconds * 1000),
            max_skew_ms=int(max_skew_seconds * 1000),
        )

    def envelope_limits(self, groups: GroupLimits) -> EnvelopeLimits:
        """What an envelope on this swarm's topic may be."""
        return EnvelopeLimits(
            self.swarm_id, Kind.ROLLOUT_GROUP, groups.max_age_ms, groups.max_skew_ms, self.max_message_bytes
        )

    @cached_property
    def swarm_id(self) -> str:
        """Hex SHA-256 of the canonical form: 64 characters. Layout and defaults left out do not change it."""
        return _digest("swarmd manifest 1", msgspec.to_builtins(self))


def task_digest(dataset: str, config: Mapping[str, object], version: str) -> str:
    """Hex SHA-256 that names (dataset, config, reasoning-gym version) in a task reference."""
    return _digest("swarmd task 1", [dataset, config, version])


def _digest(domain: str, value: object) -> str:
    # Canonical JSON: sorted keys, no spaces, ASCII; floats in their shortest form that round-trips.
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(f"{domain}\n{canonical}".encode("ascii")).hexdigest()


_TOP_LEVEL_KEYS = tuple(field.encode_name for field in msgspec.structs.fields(Manifest))


def _check(manifest: Manifest) -> None:
    if not _NAME.fullmatch(manifest.name):
        raise ConfigError(f"manifest: name must be 1-64 of A-Z a-z 0-9 . _ -, got {_short(manifest.name)}")
    if manifest.reasoning_gym != REASONING_GYM_VERSION:
        raise ConfigError(
            f"manifest: reasoning_gym is {_short(manifest.reasoning_gym)}, but this swarmd regenerates tasks "
            f"with {REASONING_GYM_VERSION}"
        )
    _check_between("group_size_min", manifest.group_size_min, 2, 1024)
    _check_between("group_size_max", manifest.group_size_max, manifest.group_size_min, 1024)
    _check_between("max_new_tokens", manifest.max_new_tokens, 1, 131_072)
    _check_between("max_completion_characters", manifest.max_completion_characters, 1, MAX_GOSSIP_BYTES)
    _check_between("max_message_bytes", manifest.max_message_bytes, 1024, MAX_GOSSIP_BYTES)
    start, stop = manifest.held_out
    if not (0 <= start < stop <= MAX_SEED and stop - start <= MAX_HELD_OUT_WIDTH):
        raise ConfigError(
            "manifest: held_out must be [start, stop] with 0 <= start < stop, at most 2^32 wide, "
            f"got [{start}, {stop}]"
        )
    if not 1 <= len(manifest.entries) <= MAX_TASKS:
        raise ConfigError(f"manifest: tasks must be 1 to {MAX_TASKS} tables, got {len(manifest.entries)}")
    for key in ("system", "prefix", "suffix"):
        _check_text(f"prompt.{key}", getattr(manifest.prompt, key))
    seen: set[str] = set()
    for i, entry in enumerate(manifest.entries):
        _check_entry(f"tasks[{i}]", entry)
        if entry.dataset in seen:
            raise ConfigError(f"manifest: tasks[{i}].dataset: {entry.dataset} is named twice")
        seen.add(entry.dataset)


def _check_entry(where: str, entry: TaskEntry) -> None:
    if not (math.isfinite(entry.weight) and 0 < entry.weight <= 1e6):
        raise ConfigError(f"manifest: {where}.weight must be above 0 and at most 1e6, got {entry.weight}")
    check_dataset(f"manifest: {where}", entry.dataset, entry.config)
    for key, value in entry.config.items():
        _check_value(f"{where}.config.{key}", value, depth=0)


def _check_value(where: str, value: object, depth: int) -> None:
    if depth > 4:
        raise ConfigError(f"manifest: {where}: nested too deeply")
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        _check_text(where, value)
    elif isinstance(value, int):
        if abs(value) > MAX_SEED:
            raise ConfigError(f"manifest: {where}: integer out of range")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"manifest: {where}: must be a finite number, got {value}")
    elif isinstance(value, list):
        for item in value:
            _check_value(where, item, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_text(where, key)
            _check_value(where, item, depth + 1)
    else:
        raise ConfigError(f"manifest: {where}: {type(value).__name__} values are not supported")


def _check_between(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"manifest: {key} must be {low} to {high}, got {value}")


def _check_text(where: str, text: str) -> None:
    if len(text) > 16_384:
        raise ConfigError(f"manifest: {where}: longer than 16384 characters")


def _readable(error: Exception) -> str:
    message = _one_line(error)
    match = re.fullmatch(r"(.*) - at `\$\.?(.*)`", message)
    return f"{match[2]}: {match[1]}" if match else message


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _short(text: str) -> str:
    return repr(text[:80])
