"""The policy as the trainer runs it: log-probabilities of completions, with gradient.

A prompt is run once and its completions against the prompt's keys and values, repeated for each of
them. Gradients flow through both, so the result equals running prompt and completion together for
every completion, at a fraction of the cost. `Policy.load` checks that on the spot and
refuses a model for which it does not hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, DynamicCache

from swarmd.errors import TrainingError
from swarmd.models.loading import LOADING_ERRORS
from swarmd.training.adapters import add_adapters, merged_weights
from swarmd.training.batch import EncodedCompletion, EncodedGroup
from swarmd.training.messages import TrainingOptions
from swarmd.training.recompute import recompute_layers
from swarmd.training.slices import Slice, cut_slices

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
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        """What is trained, by name; of tied parameters only the first name."""
        self.device: torch.device = next(iter(self.parameters.values())).device
        self.context_tokens: int = int(model.config.max_position_embeddings)
        layers = getattr(model.config, "layer_types", None) or ()
        self.joins_groups = all(layer == "full_attention" for layer in layers)
        """Whether slices may hold several prompts. Padding between a shorter prompt and its completion
        would shift what an attention window covers."""
        self._body: Callable[..., Any] = model.base_model
        self._head: Callable[[Tensor], Tensor] = model.get_output_embeddings()
        # transformers renamed the argument within its fifth version.
        names = inspect.signature(model.base_model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    @classmethod
    def load(
        cls,
        path: str | Path,
        device: torch.device,
        compute_dtype: torch.dtype,
        temperature: float,
        options: TrainingOptions | None = None,
        seed: int = 0,
    ) -> Policy:
        """Read a model folder: safetensors only, nothing from the network, no code of the folder.

        With `options`, adapters and recomputation are as they say; `seed` is that of the adapters.
        Raises TrainingError when the model cannot be read or is of a kind that cannot be trained here,
        and ConfigError when a package for the options is missing.
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
        except LOADING_ERRORS as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TrainingError(f"cannot load the model in {path}: {reason}") from error
        missing = sorted(loading["missing_keys"])
        if missing:
            # transformers would go on with random numbers in their place.
            raise TrainingError(f"the model in {path} lacks {len(missing)} weights, such as {missing[0]}")
        for parameter in model.parameters():
            # Out of the mapped file, whose alignment changes how sums round, into own memory.
            parameter.data = parameter.data.to(device, copy=True)
        model = model.to(device)
        if options is not None and options.lora_rank:
            add_adapters(model, options.lora_rank, options.lora_alpha, compute_dtype, seed)
        policy = cls(model, temperature, compute_dtype)
        policy.check_shared_prompt()
        if options is not None and options.gradient_checkpointing:
            policy.recompute()
        return policy

    def recompute(self) -> None:
        """From now on keep little for the gradient and compute it again. TrainingError if it cannot."""
        recompute_layers(self._body, self._cache_argument)

    def weights(self) -> dict[str, Tensor]:
        """All weights as a generator takes them, adapters merged; without adapters the live ones."""
        return merged_weights(self.model)

    def logprobs(self, rows: Slice) -> Tensor:
        """Log-probability (nats) of every completion token, float32 of shape BT, 0 on padding."""
        with self._precision():
            hidden_NH = self._hidden_before_tokens(rows)[rows.mask_BT]
            logprobs_N = self._token_logprobs(hidden_NH, rows.token_ids_BT[rows.mask_BT])
        empty_BT = torch.zeros(rows.mask_BT.shape, device=self.device)
        return empty_BT.masked_scatter(rows.mask_BT, logprobs_N)

    @torch.no_grad()
    def text_logprobs(self, token_ids: Sequence[int], temperature: float = 1.0) -> Tensor:
        """Log-probability (nats) of each token of a text but the first, the plain way, float32."""
        ids_1S = torch.tensor([list(token_ids)], device=self.device)
        with self._precision():
            logits_SV = self.model(input_ids=ids_1S).logits[0, :-1].float() / temperature
        logprobs_SV = torch.log_softmax(logits_SV, dim=-1)
        return logprobs_SV.gather(-1, ids_1S[0, 1:].unsqueeze(-1)).squeeze(-1)

    def check_shared_prompt(self) -> None:
        """Compare `logprobs` with the model's own plain forward on a few tokens.

        Raises TrainingError when they differ: a model that changes its logits after the output
        layer, or that keeps more than keys and values of what it has read.
        """
        vocabulary = int(self.model.config.vocab_size)
        ids = [number * 37 % vocabulary for number in range(12)]
        answers = tuple(EncodedCompletion(tuple(ids[start : start + 3]), None, 0.0) for start in (6, 9))
        lengths = (6, 4) if self.joins_groups else (6,)
        groups = [EncodedGroup(tuple(ids[:length]), answers, False, False, 0) for length in lengths]
        gap = 0.0
        with torch.no_grad():
            (rows,) = cut_slices(groups, 1000, self.device, join_groups=self.joins_groups)
            for (group, answer), shared_T in zip(rows.origin_B, self.logprobs(rows), strict=True):
                plain_T = self._plain_logprobs(groups[group].prompt_ids_P, answers[answer].token_ids_T)
                gap = max(gap, float((shared_T - plain_T).abs().max()))
        if not gap <= _CHECK_TOLERANCE[self.compute_dtype]:
            raise TrainingError(
                f"models of type {self.model.config.model_type} cannot be trained here: log-probabilities "
                f"with a shared prompt are {gap:.3g} nats off"
            )

    def _plain_logprobs(self, prompt_ids_P: tuple[int, ...], token_ids_T: tuple[int, ...]) -> Tensor:
        """What `logprobs` must equal for one completion."""
        logprobs_S = self.text_logprobs((*prompt_ids_P, *token_ids_T), self.temperature)
        return logprobs_S[len(prompt_ids_P) - 1 :]

    def _precision(self) -> torch.autocast:
        is_lower = self.compute_dtype != torch.float32
        return torch.autocast(self.device.type, self.compute_dtype if is_lower else None, enabled=is_lower)

    def _hidden_before_tokens(self, rows: Slice) -> Tensor:
        """Last hidden state at the position before each completion token, shape BTH."""
        cache = DynamicCache(config=self.model.config)
        # Padding stands on the right, where causal attention hides it from every real token.
        prompt_QPH = self._run(rows.prompt_ids_QP, cache)
        lengths_Q, length = rows.prompt_lengths_Q, rows.token_ids_BT.shape[1]
        last_QH = prompt_QPH[torch.arange(len(lengths_Q), device=self.device), lengths_Q - 1]
        before_first_B1H = last_QH.index_select(0, rows.prompt_of_B).unsqueeze(1)
        if length == 1:
            return before_first_B1H
        for layer in cache.layers:
            layer.keys = layer.keys.index_select(0, rows.prompt_of_B)
            layer.values = layer.values.index_select(0, rows.prompt_of_B)
        lengths_B1 = lengths_Q.index_select(0, rows.prompt_of_B).unsqueeze(1)
        longest = rows.prompt_ids_QP.shape[1]
        steps_T = torch.arange(length - 1, device=self.device)
        places_S = torch.arange(longest + length - 1, device=self.device)
        # Of a shorter prompt, the padding between its end and the completion is hidden.
        is_seen_BS = (places_S < lengths_B1) | (places_S >= longest)
        is_padded = bool((lengths_Q < longest).any())
        before_rest_BTH = self._run(
            rows.token_ids_BT[:, :-1],
            cache,
            attention_mask=is_seen_BS.long() if is_padded else None,
            position_ids=lengths_B1 + steps_T,
        )
        return torch.cat([before_first_B1H, before_rest_BTH], dim=1)

    def _run(self, token_ids_BT: Tensor, cache: DynamicCache, **arguments: Tensor | None) -> Tensor:
        cached = {self._cache_argument: cache}
        output = self._body(input_ids=token_ids_BT, use_cache=True, **cached, **arguments)
        hidden_BTH: Tensor = output.last_hidden_state
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
        logits_NV = self._head(hidden_NH).float()
        if self.temperature != 1.0:
            logits_NV = logits_NV / self.temperature
        return -torch.nn.functional.cross_entropy(logits_NV, token_ids_N, reduction="none")
