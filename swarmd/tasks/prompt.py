"""From question to prompt, and from completion to answer. One rule each, for all nodes of a swarm."""

from __future__ import annotations

from swarmd.tasks.manifest import Manifest
from swarmd.types import Prompt

_OPEN = "<answer>"
_CLOSE = "</answer>"


def render(question: str, manifest: Manifest) -> Prompt:
    """The prompt for a question: the manifest's prefix, the question verbatim, the suffix."""
    spec = manifest.prompt
    system = spec.system if spec.style == "chat" and spec.system else None
    return Prompt(style=spec.style, text=f"{spec.prefix}{question}{spec.suffix}", system=system)


def extract_answer(completion: str) -> str:
    """The answer in a completion.

    The rule: what stands between the last `</answer>` and the last `<answer>` before it; where there is
    no such pair, the whole completion. White space around it is dropped. Linear in the length.
    """
    end = completion.rfind(_CLOSE)
    start = completion.rfind(_OPEN, 0, end) if end >= 0 else -1
    if start < 0:
        return completion.strip()
    return completion[start + len(_OPEN) : end].strip()
