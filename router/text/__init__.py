"""Text to tokens and back."""

from baton.router.text.choice import ChoiceText, Delta
from baton.router.text.codec import TextCodec
from baton.router.text.detokenize import Detokenizer
from baton.router.text.load import load_tokenizer
from baton.router.text.stop import StopMatcher, check_stops

__all__ = ["ChoiceText", "Delta", "Detokenizer", "StopMatcher", "TextCodec", "check_stops", "load_tokenizer"]
