"""For gateways to language models: what a call took, what it may take, and what calls like it took lately.

``read_usage`` and ``UsageMeter`` read the responses of OpenAI, Anthropic, Gemini and Bedrock;
``estimate_tokens`` weighs a prompt; ``LearnedEstimates`` reserves what calls really take instead of what
they may.
"""

from .amounts import Amounts, priced_tokens, separate_tokens, total_tokens
from .estimates import LearnedEstimates, SyncLearnedEstimates
from .meter import UsageMeter
from .tokens import estimate_tokens, output_cap, tokens_at_most
from .usage import Usage, read_usage

__all__ = [
    "Amounts",
    "LearnedEstimates",
    "SyncLearnedEstimates",
    "Usage",
    "UsageMeter",
    "estimate_tokens",
    "output_cap",
    "priced_tokens",
    "read_usage",
    "separate_tokens",
    "tokens_at_most",
    "total_tokens",
]
