"""Faults in the code between text and file, in `pipeline.text.encoding` and `pipeline.convert.model`.

`plant()` patches the modules of the process that runs the file. That process is thrown away afterwards.
"""

from typing import Any

import numpy as np

from faults.fault import FLOAT, Fault
from faults.students import Student
from pipeline.convert import model as runtime
from pipeline.text import encoding


def truncated_on_the_left() -> None:
    def initialise(self: Any, tokenizer: Any, max_length: int) -> None:
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_length, direction="left")
        self._tokenizer, self.max_length = tokenizer, max_length

    encoding.Encoder.__init__ = initialise  # type: ignore[method-assign]


def second_text_dropped() -> None:
    clean = encoding.Encoder.encode
    encoding.Encoder.encode = lambda self, first, second=None: clean(self, first)  # type: ignore[method-assign]


def windows_do_not_overlap() -> None:
    clean = encoding.Encoder.windows
    encoding.Encoder.windows = lambda self, question, passage, *, stride: clean(  # type: ignore[method-assign]
        self, question, passage, stride=0
    )


def passage_cut_short() -> None:
    clean = encoding.Encoder.windows
    encoding.Encoder.windows = (  # type: ignore[method-assign]
        lambda self, question, passage, *, stride: clean(self, question, passage, stride=stride)[:1]
    )


def _edit_inputs(edit: Any) -> None:
    clean = encoding.Row.padded

    def padded(self: Any, names: Any, length: int, *, pad_token_id: int) -> Any:
        arrays = clean(self, names, length, pad_token_id=pad_token_id)
        edit(arrays, len(self))
        return arrays

    encoding.Row.padded = padded  # type: ignore[method-assign]


def padded_on_the_left() -> None:
    def shift(arrays: dict[str, Any], tokens: int) -> None:
        for name, array in arrays.items():
            arrays[name] = np.roll(array, array.shape[1] - tokens, axis=1)

    _edit_inputs(shift)


def mask_one_too_long() -> None:
    def lengthen(arrays: dict[str, Any], tokens: int) -> None:
        arrays["attention_mask"][0, : tokens + 1] = 1

    _edit_inputs(lengthen)


def types_not_passed() -> None:
    _edit_inputs(lambda arrays, tokens: arrays["token_type_ids"].fill(0))


def _edit_output(edit: Any) -> None:
    clean = runtime.Model.run_padded
    runtime.Model.run_padded = lambda self, function, inputs: edit(  # type: ignore[method-assign]
        self, clean(self, function, inputs)
    )


def noise_added() -> None:
    generator = np.random.default_rng()
    _edit_output(lambda self, output: output + generator.normal(0.0, 1e-6, output.shape).astype(np.float32))


def previous_output_returned() -> None:
    last: dict[int, Any] = {}

    def stale(self: Any, output: Any) -> Any:
        before = last.get(id(self), output)
        last[id(self)] = output
        return before

    _edit_output(stale)


def threads_change_numbers() -> None:
    clean = runtime.Model.__init__

    def initialise(self: Any, folder: Any, *, threads: int = 1, **more: Any) -> None:
        clean(self, folder, threads=threads, **more)
        self.threads = threads

    runtime.Model.__init__ = initialise  # type: ignore[method-assign]
    _edit_output(lambda self, output: output * np.float32(1.0 + 0.01 * (self.threads - 1)))


def _fault(name: str, what: str, plant: Any, **more: Any) -> Fault:
    return Fault(name, what, "runtime", plant, more.pop("student", Student()), cells=more.pop("cells", FLOAT), **more)


_SPANS = Student("mobilebert", "question_answering")
_OWN_THREADS = {"coreml": "Core ML chooses its threads itself"}
FAULTS = (
    _fault("truncated_on_the_left", "long texts lose their beginning", truncated_on_the_left),
    _fault("second_text_dropped", "the second text of a pair is not encoded", second_text_dropped),
    _fault("padded_on_the_left", "padding comes before the text", padded_on_the_left),
    _fault("mask_one_too_long", "the mask covers one padding token", mask_one_too_long),
    _fault("types_not_passed", "token types are not passed to the file", types_not_passed),
    _fault("noise_added", "results differ by 1e-6 from run to run", noise_added),
    _fault("previous_output_returned", "each call gives the previous call's output", previous_output_returned),
    _fault(
        "threads_change_numbers",
        "two threads give other numbers than one",
        threads_change_numbers,
        cells={name: FLOAT[name] for name in ("litert", "executorch")},
        not_for=_OWN_THREADS,
    ),
)
OF_STUDENTS = (
    _fault("windows_do_not_overlap", "windows over a passage do not overlap", windows_do_not_overlap, student=_SPANS),
    _fault("passage_cut_short", "a passage's first window alone is read", passage_cut_short, student=_SPANS),
)
"""Faults of passages that are cut into windows."""
