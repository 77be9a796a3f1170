"""A reference interpreter for Core ML programs: it runs a `.mlpackage` where there is no Core ML.

It follows the definitions of MIL's operations, of iOS 15 to 18, in single precision, and rounds to half precision what
the program declares so. That shows what a program computes: its weights as stored, its operations, its shapes, its
overflows. It does not show how Apple's kernels round or order their sums, the Neural Engine's above all, on which unit
an operation runs, how long it takes, or whether Apple's compiler accepts the file. Only a Mac or an iPhone does.

In: a package and arrays. Out: arrays, and a listing of operations and stored weights. May import errors only.
"""

from pipeline.errors import UnknownOp
from pipeline.mil.interface import Port
from pipeline.mil.interpreter import VERSION, Interpreter, Precision, Watch
from pipeline.mil.package import Package, read

__all__ = ["VERSION", "Interpreter", "Package", "Port", "Precision", "UnknownOp", "Watch", "read"]
