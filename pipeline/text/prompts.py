"""The prompts of an embedding model, by name. Signatures are read with this alone: no tokenizer and no NumPy."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipeline.errors import InputError

_OF_DOCUMENTS = ("document", "passage")
"""What models call the prompt of texts that are searched."""
_OF_QUERIES = ("query",)


@dataclass(frozen=True)
class Prompts:
    """The texts that an embedding model wants before a text, such as `query: `."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By name."""
    default: str | None = None
    """Name of the prompt of a text that comes without one; None for none."""
    pooled: bool = True
    """Whether the prompt's own tokens are part of the embedding."""

    @property
    def of_documents(self) -> str | None:
        """Name of the prompt of texts that are searched, as against a query; None for the default one."""
        return next((name for name in _OF_DOCUMENTS if name in self.texts), None)

    @property
    def of_queries(self) -> str | None:
        """Name of the prompt of what is looked for; None for the default one."""
        return next((name for name in _OF_QUERIES if name in self.texts), None)

    def text(self, name: str | None) -> str:
        """Return a prompt's text: of the default one for None, and an empty one for an empty name.

        Raises:
            InputError: there is no prompt of that name.
        """
        chosen = self.default if name is None else name
        if not chosen:
            return ""
        if chosen not in self.texts:
            exist = ", ".join(self.texts) or "none; the model wants no prompts"
            raise InputError(f"prompt {chosen[:80]!r} does not exist; there are: {exist}.")
        return self.texts[chosen]


NO_PROMPTS = Prompts()
