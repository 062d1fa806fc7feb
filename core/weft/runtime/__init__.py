"""Running compiled models. Imports nothing of the compiler: a saved model runs where only this package is installed."""

from weft.runtime.executable import Executable, NativeCode
from weft.runtime.plan import ConstantInfo, Manifest, Native, SectionInfo, TensorInfo

__all__ = ["ConstantInfo", "Executable", "Manifest", "Native", "NativeCode", "SectionInfo", "TensorInfo"]
