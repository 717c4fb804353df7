"""The policy as the trainer runs it: log-probabilities of completions, with gradient.

A group's prompt is run once and its completions against the prompt's keys and values, repeated for
each of them. Gradients flow through both, so the result equals running prompt and completion
together for every completion, at a fraction of the cost. `Policy.load` checks that on the spot and
refuses a model for which it does not hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache

from swarmd.errors import TrainingError
from swarmd.training.batch import Slice

__all__ = ["Policy"]

_LOGITS_AT_ONCE = 1 << 26
"""Logits held in float32 at a time; 256 MB. A larger slice computes them again for the gradient."""
_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.float16: 0.05}
"""Nats by which the shared-prompt forward may differ from the plain one, by format computed in."""


class Policy:
    """A causal language model, seen as log-probabilities at the sampling temperature.

    Parameters stay float32, where small updates are not rounded away; with another `compute_dtype`
    the forward runs under autocast. Dropout is off: the policy trained is the one sampled from.
    """

    def __init__(self, model: Any, temperature: float, compute_dtype: torch.dtype = torch.float32) -> None:
        self.model = model.eval()
        self.temperature = temperature
        self.compute_dtype = compute_dtype
        self.parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        """By name; of tied parameters only the first name."""
        first = next(iter(self.parameters.values()))
        self.device: torch.device = first.device
        self.context_tokens: int = int(model.config.max_position_embeddings)
        self._body: Callable[..., Any] = model.base_model
        self._head: Callable[[Tensor], Tensor] = model.get_output_embeddings()
        # transformers renamed the argument within its fifth version.
        names = inspect.signature(model.base_model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    @classmethod
    def load(
        cls, path: str | Path, device: torch.device, compute_dtype: torch.dtype, temperature: float
    ) -> Policy:
        """Read a model folder: safetensors only, nothing from the network, no code of the folder.

        Raises TrainingError when it cannot be read or is of a kind that cannot be trained here.
        """
        try:
            model, loading = AutoModelForCausalLM.from_pretrained(
                str(path),
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TrainingError(f"cannot load the model in {path}: {reason}") from error
        missing = sorted(loading["missing_keys"])
        if missing:
            # transformers would go on with random numbers in their place.
            raise TrainingError(f"the model in {path} lacks {len(missing)} weights, such as {missing[0]}")
        policy = cls(model.to(device), temperature, compute_dtype)
        policy.check_shared_prompt()
        return policy

    def logprobs(self, rows: Slice) -> Tensor:
        """Log-probability (nats) of every completion token, float32 of shape GT, 0 on padding."""
        with torch.autocast(
            self.device.type, self.compute_dtype, enabled=self.compute_dtype != torch.float32
        ):
            hidden_NH = self._hidden_before_tokens(rows)[rows.mask_GT]
            logprobs_N = self._token_logprobs(hidden_NH, rows.token_ids_GT[rows.mask_GT])
        empty_GT = torch.zeros(rows.mask_GT.shape, device=self.device)
        return empty_GT.masked_scatter(rows.mask_GT, logprobs_N)

    def check_shared_prompt(self) -> None:
        """Compare `logprobs` with the model's own plain forward on a few tokens.

        Raises TrainingError when they differ: a model that changes its logits after the output
        layer, or that keeps more than keys and values of what it has read.
        """
        vocabulary = int(self.model.config.vocab_size)
        ids_18 = (torch.arange(8, device=self.device) * 37 % vocabulary).unsqueeze(0)
        rows = Slice(
            prompt_ids_P=ids_18[0, :5],
            token_ids_GT=ids_18[:, 5:].expand(2, -1),
            mask_GT=torch.ones(2, 3, dtype=torch.bool, device=self.device),
            advantages_G=torch.zeros(2, device=self.device),
            old_logprobs_GT=None,
            is_local=True,
            policy_version=0,
            rows=(0, 1),
        )
        with torch.no_grad():
            shared_3 = self.logprobs(rows)[1]
            with torch.autocast(
                self.device.type, self.compute_dtype, enabled=self.compute_dtype != torch.float32
            ):
                logits_1TV = self.model(input_ids=ids_18).logits.float() / self.temperature
            plain_TV = torch.log_softmax(logits_1TV[0, 4:-1], dim=-1)
            plain_3 = plain_TV.gather(-1, ids_18[0, 5:].unsqueeze(-1)).squeeze(-1)
        gap = float((shared_3 - plain_3).abs().max())
        if not gap <= _CHECK_TOLERANCE[self.compute_dtype]:
            raise TrainingError(
                f"models of type {self.model.config.model_type} cannot be trained here: log-probabilities "
                f"with a shared prompt are {gap:.3g} nats off"
            )

    def _hidden_before_tokens(self, rows: Slice) -> Tensor:
        """Last hidden state at the position before each completion token, shape GTH."""
        completions, length = rows.token_ids_GT.shape
        cache = DynamicCache(config=self.model.config)
        prompt_1PH = self._run(rows.prompt_ids_P.unsqueeze(0), cache)
        before_first_G1H = prompt_1PH[:, -1:].expand(completions, -1, -1)
        if length == 1:
            return before_first_G1H
        cache.batch_repeat_interleave(completions)
        # Padding stands on the right, where causal attention hides it from every real token.
        before_rest_GTH = self._run(rows.token_ids_GT[:, :-1], cache)
        return torch.cat([before_first_G1H, before_rest_GTH], dim=1)

    def _run(self, token_ids_BT: Tensor, cache: DynamicCache) -> Tensor:
        arguments = {"input_ids": token_ids_BT, "use_cache": True, self._cache_argument: cache}
        hidden_BTH: Tensor = self._body(**arguments).last_hidden_state
        return hidden_BTH

    def _token_logprobs(self, hidden_NH: Tensor, token_ids_N: Tensor) -> Tensor:
        at_once = max(1, _LOGITS_AT_ONCE // int(self.model.config.vocab_size))
        if len(token_ids_N) <= at_once:
            return self._token_logprobs_at_once(hidden_NH, token_ids_N)
        parts = [
            checkpoint(
                self._token_logprobs_at_once, hidden, ids, use_reentrant=False, preserve_rng_state=False
            )
            for hidden, ids in zip(
                torch.split(hidden_NH, at_once), torch.split(token_ids_N, at_once), strict=True
            )
        ]
        return torch.cat(parts)

    def _token_logprobs_at_once(self, hidden_NH: Tensor, token_ids_N: Tensor) -> Tensor:
        logits_NV = self._head(hidden_NH).float() / self.temperature
        chosen_N = logits_NV.gather(-1, token_ids_N.unsqueeze(-1)).squeeze(-1)
        return chosen_N - torch.logsumexp(logits_NV, dim=-1)
