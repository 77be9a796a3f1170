"""PocketBERT: small BERT students, converted for phones and proven to be the same model.

`load` is all that most Python users need::

    import pipeline
    model = pipeline.load("build/minilm/litert-int8_dynamic/model")
    vectors = model.predict(["a text", "another"])
"""

from pipeline.convert.isolated import IsolatedModel, load
from pipeline.convert.model import Model

__all__ = ["IsolatedModel", "Model", "load"]
__version__ = "0.1.0"
