"""Peers behind the interface that the benchmark times; every function here is importable by a worker."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.text.encoding import Encoder, Row

NAMES = ("input_ids", "attention_mask", "token_type_ids")
Arrays = dict[str, NDArray[Any]]


class _Peer:
    """Any length, int64 inputs; subclasses say how a row runs."""

    def __init__(self, student: Path, max_length: int) -> None:
        self.encoder = Encoder.from_folder(student, max_length)

    def place(self, tokens: int) -> int:
        return tokens

    def prepare(self, row: Row, length: int) -> Arrays:
        padded = row.padded(NAMES, length, pad_token_id=0)
        return {name: array.astype(np.int64) for name, array in padded.items()}


class OnnxRuntime(_Peer):
    """onnxruntime on the CPU."""

    def __init__(self, file: Path, student: Path, max_length: int, threads: int) -> None:
        super().__init__(student, max_length)
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def execute(self, inputs: Arrays, length: int) -> NDArray[np.float32]:
        return np.asarray(self._session.run(None, inputs)[0][0])


class LiteRTDefault(_Peer):
    """The default export in the default interpreter, padded to its one length."""

    def __init__(self, file: Path, student: Path, max_length: int, threads: int) -> None:
        super().__init__(student, max_length)
        from ai_edge_litert.interpreter import Interpreter

        self._runner = Interpreter(model_path=str(file), num_threads=threads).get_signature_runner()
        details = self._runner.get_input_details()
        self._inputs = dict(zip(NAMES, sorted(details), strict=True))
        self._dtype = {name: details[arg]["dtype"] for name, arg in self._inputs.items()}
        self._length = max_length

    def place(self, tokens: int) -> int:
        return self._length

    def execute(self, inputs: Arrays, length: int) -> NDArray[np.float32]:
        arguments = {arg: inputs[name].astype(self._dtype[name]) for name, arg in self._inputs.items()}
        return np.asarray(next(iter(self._runner(**arguments).values()))[0])


class ExecuTorchDefault(_Peer):
    """The default export in the default runtime, padded to its one length."""

    def __init__(self, file: Path, student: Path, max_length: int, threads: int) -> None:
        super().__init__(student, max_length)
        from executorch.extension.pybindings.portable_lib import _unsafe_reset_threadpool
        from executorch.runtime import Runtime

        _unsafe_reset_threadpool(threads)
        self._method = Runtime.get().load_program(file).load_method("forward")
        self._length = max_length

    def place(self, tokens: int) -> int:
        return self._length

    def execute(self, inputs: Arrays, length: int) -> NDArray[np.float32]:
        import torch

        return np.array(self._method.execute([torch.from_numpy(inputs[name]) for name in NAMES])[0].numpy()[0])


class TorchInt8(_Peer):
    """PyTorch's own dynamic int8 of linears, eager, unpadded."""

    def __init__(self, student: Path, max_length: int, threads: int) -> None:
        super().__init__(student, max_length)
        import torch

        from benchmarks.peer_exports import SentenceEncoder

        torch.set_num_threads(threads)
        encoder = SentenceEncoder(student).eval()
        self._model = torch.ao.quantization.quantize_dynamic(encoder, {torch.nn.Linear}, dtype=torch.qint8)

    def execute(self, inputs: Arrays, length: int) -> NDArray[np.float32]:
        import torch

        with torch.inference_mode():
            return np.asarray(
                self._model(**{name: torch.from_numpy(array) for name, array in inputs.items()}).numpy()[0]
            )


def import_onnxruntime() -> None:
    import onnxruntime  # noqa: F401


def import_litert() -> None:
    import ai_edge_litert.interpreter  # noqa: F401


def import_executorch() -> None:
    import executorch.runtime  # noqa: F401


def import_torch() -> None:
    import torch.ao.quantization  # noqa: F401
    import transformers.models.auto  # noqa: F401


IMPORTS = {
    "onnxruntime": import_onnxruntime,
    "litert": import_litert,
    "executorch": import_executorch,
    "pytorch": import_torch,
}
"""What a worker imports before it opens a peer's file."""
