"""Native kernels: the forward of a model in C++, one call a step over all layers.

- `source/`    the kernels, in C++ behind a C ABI: `kernels.cpp` includes the rest
- `native`     a decoder that they compute
- `bindings`   the C side as ctypes sees it
- `library`    loads them, or says why there are none
- `build`      compiles them, once for each machine
- `cache`      where they are kept, and whose files may be loaded
- `processors` how many there are for this process
- `target`     for which machines, and which one this is
- `reference`  what the kernels compute, in NumPy: their specification

Importing this package neither compiles nor loads anything.
"""

from vidette.kernels.build import compile_kernels as compile_kernels
from vidette.kernels.build import find_kernels as find_kernels
from vidette.kernels.cache import kernels_directory as kernels_directory
from vidette.kernels.library import Kernels as Kernels
from vidette.kernels.library import Opened as Opened
from vidette.kernels.library import load_library as load_library
from vidette.kernels.library import open_kernels as open_kernels
from vidette.kernels.target import Target as Target
