"""Fills the configuration from its sources and remembers where each value came from.

Order, later wins: defaults < config.toml of the home < environment < --config < --set < flags.
Everything wrong is a ConfigError in one line that names the source and the key, and the nearest
known key where the key is unknown. Nothing heavy is imported on the way.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from swarmd.config import Config, Section
from swarmd.config_checks import broken_rule
from swarmd.errors import ConfigError

__all__ = ["Flag", "Setting", "SourcedConfig", "known_keys", "load_config"]

_ENVIRONMENT_PREFIX = "SWARMD_"
_TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True)
class Flag:
    """A command-line flag that sets a key."""

    name: str
    """As typed: --model."""
    value: object


@dataclass(frozen=True)
class Setting:
    """One key of the configuration with its value in force."""

    key: str
    """section.field"""
    value: object
    source: str
    """default, file PATH, environment NAME, --set, or flag NAME."""


@dataclass(frozen=True)
class SourcedConfig:
    """A checked configuration and the source of every value in it."""

    config: Config
    sources: Mapping[str, str]
    """section.field to source, for each key that is not at its default."""

    def settings(self) -> tuple[Setting, ...]:
        """Every key in the order of the config types."""
        rows = []
        for key in known_keys():
            section, field = key.split(".")
            value: object = getattr(getattr(self.config, section), field)
            rows.append(Setting(key, value, self.sources.get(key, "default")))
        return tuple(rows)


@dataclass(frozen=True)
class _Given:
    value: object
    source: str


def load_config(
    home_file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    config_file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, Flag] | None = None,
) -> SourcedConfig:
    """Read all sources, lay them over each other, and check the result.

    `home_file` may be missing on disk, `config_file` may not. `assignments` are --set texts,
    section.key=value. `flags` maps keys to the flags given. Raises ConfigError.
    """
    given: dict[str, _Given] = {}
    if home_file is not None:
        given |= _from_file(home_file, may_be_missing=True)
    given |= _from_environment(environment or {})
    if config_file is not None:
        given |= _from_file(config_file)
    given |= _from_assignments(assignments)
    given |= {key: _Given(flag.value, f"flag {flag.name}") for key, flag in (flags or {}).items()}
    sources = {key: value.source for key, value in given.items()}
    config = _validated(given)
    broken = broken_rule(config)
    if broken is not None:
        key, problem = broken
        raise ConfigError(f"{key}: {problem} ({sources.get(key, 'default')})")
    return SourcedConfig(config, sources)


def known_keys() -> tuple[str, ...]:
    """All keys, section.field, in the order of the config types."""
    return tuple(f"{name}.{field}" for name, section in _sections().items() for field in section.model_fields)


def _sections() -> dict[str, type[Section]]:
    return {name: typing.cast("type[Section]", info.annotation) for name, info in Config.model_fields.items()}


def _from_file(path: Path, may_be_missing: bool = False) -> dict[str, _Given]:
    source = f"file {path}"
    try:
        with path.open("rb") as file:
            document = tomllib.load(file)
    except OSError as error:
        if may_be_missing and isinstance(error, FileNotFoundError | NotADirectoryError):
            return {}
        raise ConfigError(f"config file {path} cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid TOML: {_first_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"config file {path} is nested too deeply") from error
    given = {}
    for name, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{source}: {name!r} stands outside a section{_suggestion(name)}")
        _require_section(name, source)
        for field, value in table.items():
            key = f"{name}.{field}"
            _require_key(key, source)
            given[key] = _Given(tuple(value) if isinstance(value, list) else value, source)
    return given


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    given = {}
    for name in sorted(environment):
        if not name.startswith(_ENVIRONMENT_PREFIX) or name == "SWARMD_HOME":
            continue
        source = f"environment {name}"
        section, separator, field = name.removeprefix(_ENVIRONMENT_PREFIX).lower().partition("__")
        if not separator:
            _require_no_near_miss(name, section)
            continue
        key = f"{section}.{field}"
        _require_section(section, source)
        _require_key(key, source)
        given[key] = _Given(_parsed(key, environment[name], source), source)
    return given


def _from_assignments(assignments: Iterable[str]) -> dict[str, _Given]:
    given = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        key = key.strip()
        if not separator or "." not in key:
            raise ConfigError(f"--set takes section.key=value, got {assignment!r}{_suggestion(key)}")
        _require_section(key.split(".", 1)[0], "--set")
        _require_key(key, "--set")
        given[key] = _Given(_parsed(key, text.strip(), "--set"), "--set")
    return given


def _require_section(name: str, source: str) -> None:
    if name not in _sections():
        near = difflib.get_close_matches(name, _sections(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_sections())}"
        raise ConfigError(f"{source}: unknown section {name!r}; {hint}")


def _require_key(key: str, source: str) -> None:
    if key not in known_keys():
        raise ConfigError(f"{source}: unknown key {key!r}{_suggestion(key)}")


def _require_no_near_miss(name: str, rest: str) -> None:
    """Other SWARMD_ variables are not ours to judge, but one underscore too few must not be silent."""
    for key in known_keys():
        if rest == key.replace(".", "_"):
            raise ConfigError(f"environment {name}: did you mean {_environment_name(key)}?")
    if rest in _sections():
        raise ConfigError(f"environment {name}: a key is missing; name it as {name}__KEY")


def _environment_name(key: str) -> str:
    return _ENVIRONMENT_PREFIX + key.upper().replace(".", "__")


def _suggestion(key: str) -> str:
    """The nearest known key, as the end of a message."""
    field = key.rsplit(".", 1)[-1]
    by_field: dict[str, str] = {}
    for known in known_keys():
        by_field.setdefault(known.split(".")[1], known)
    if field in by_field and by_field[field] != key:
        return f"; did you mean {by_field[field]!r}?"
    near = difflib.get_close_matches(key, known_keys(), n=1, cutoff=0.5)
    if near:
        return f"; did you mean {near[0]!r}?"
    near = difflib.get_close_matches(field, by_field, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {by_field[near[0]]!r}?"
    return "; `swarmd config show` lists all keys"


def _parsed(key: str, text: str, source: str) -> object:
    """Text from the environment or --set as the type of its key."""
    kind = _plain_type(key)
    try:
        if kind is bool:
            return _parsed_bool(text)
        if kind is int:
            return int(text)
        if kind is float:
            return float(text)
        if kind is tuple:
            return _parsed_tuple(text)
    except ValueError as error:
        wanted = {bool: "true or false", int: "a whole number", float: "a number", tuple: "a list of texts"}
        raise ConfigError(f"{key} must be {wanted[kind]}, got {text!r} ({source})") from error
    return text


def _parsed_bool(text: str) -> bool:
    word = text.lower()
    if word in _TRUE_WORDS:
        return True
    if word in _FALSE_WORDS:
        return False
    raise ValueError(text)


def _parsed_tuple(text: str) -> tuple[object, ...]:
    """A TOML array, or texts separated by commas; empty is the empty list."""
    if text.startswith("["):
        value: object = tomllib.loads(f"value = {text}")["value"]  # TOMLDecodeError is a ValueError
        if not isinstance(value, list):
            raise ValueError(text)
        return tuple(value)
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _plain_type(key: str) -> type:
    """bool, int, float, str or tuple: what the field holds, without its bounds."""
    section, field = key.split(".")
    annotation = _sections()[section].model_fields[field].annotation
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return str
    if origin is not None and not isinstance(annotation, types.UnionType):
        return typing.cast("type", origin)
    return typing.cast("type", annotation)


def _validated(given: Mapping[str, _Given]) -> Config:
    nested: dict[str, dict[str, object]] = {}
    for key, value in given.items():
        section, field = key.split(".")
        nested.setdefault(section, {})[field] = value.value
    sections = _sections()
    try:
        # Strict: `rounds = true` or `rounds = "3"` in a file is a mistake, not a 1 or a 3.
        parts = {name: sections[name].model_validate(values, strict=True) for name, values in nested.items()}
    except ValidationError as error:
        raise ConfigError(_worded(error, nested, given)) from error
    try:
        return Config(**parts)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ConfigError(_rule(error)) from error


def _rule(error: ValidationError) -> str:
    """What a rule of the config types says that is about several keys; it names them itself."""
    return error.errors(include_url=False, include_context=False)[0]["msg"].removeprefix("Value error, ")


def _worded(
    error: ValidationError, nested: Mapping[str, Mapping[str, object]], given: Mapping[str, _Given]
) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    if not first["loc"]:
        return _rule(error)
    field = str(first["loc"][0])
    # The error knows its section by the name of its class only.
    names = {kind.__name__: name for name, kind in _sections().items() if name in nested}
    section = names[error.title]
    key = f"{section}.{field}"
    problem = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    problem = {"tuple": "a list", "string": "a text", "integer": "a whole number"}.get(problem, problem)
    value = given[key].value
    shown = list(value) if isinstance(value, tuple) else value
    return f"{key} must be {problem}, got {shown!r} ({given[key].source})"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
