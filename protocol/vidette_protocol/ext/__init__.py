"""Extension types: arrays, tensors and pointers to memory, inside messages.

A codec is given an `ExtHooks`, built once, and then carries in every field of type `object` what
MessagePack lacks. The ids are stable, and what is written for 1, 2 and 3 is the published layout of
SGLang's, byte for byte:

    id  type                 payload
    1   array.array          buffer; metadata: typecode
    2   torch.Tensor         buffer; metadata: [shape, dtype, device]
    3   numpy.ndarray        buffer; metadata: [shape, dtype.str]
    4   ShmPointer           MessagePack of its state
    5   CudaIpcHandle        MessagePack of its state
    6   torch.Tensor         MessagePack: [shape, dtype, device, number of a buffer beside the message]
    7   numpy.ndarray        MessagePack: [shape, dtype.str, number of a buffer beside the message]

What is large is written as 6 and 7 where the codec allows bulk, else as 2 and 3.

Ids that are not in this table stay `msgspec.msgpack.Ext`. Whatever the payload, decoding gives a value or
`DecodeError`, allocates no more than the payload is long, and has no effect outside: 4 and 5 decode to
inert descriptors, which `vidette.transport` materialises and acknowledges.

NumPy and torch are imported by `ndarrays` and `tensors` alone, and there inside the functions: a process
imports what arrives in it, and one that has no torch can still decode arrays.

- `layout`       the buffer layout, and every check of a size
- `dtypes`       the element types that may travel, by name
- `arrays`       array.array
- `ndarrays`     numpy.ndarray and NumPy scalars
- `tensors`      torch.Tensor
- `either`       what is done alike with both
- `markers`      tuple, torch.Size, dtype and device inside `ModelData` and inside descriptors
- `outside`      the buffers beside a message
- `bundle`       the frame of a message and the buffers beside it
- `descriptors`  `ShmPointer`, `CudaIpcHandle` and how often each is acknowledged: once
- `pointers`     which of them a message holds
- `hooks`        `ExtHooks`, which joins all this
"""

from vidette_protocol.ext.descriptors import Acknowledgement as Acknowledgement
from vidette_protocol.ext.descriptors import CudaIpcHandle as CudaIpcHandle
from vidette_protocol.ext.descriptors import CudaIpcMemory as CudaIpcMemory
from vidette_protocol.ext.descriptors import ShmPointer as ShmPointer
from vidette_protocol.ext.either import flatten as flatten
from vidette_protocol.ext.either import new_array as new_array
from vidette_protocol.ext.either import stack as stack
from vidette_protocol.ext.hooks import ExtHooks as ExtHooks
from vidette_protocol.ext.layout import ExtCode as ExtCode
from vidette_protocol.ext.layout import Flat as Flat
from vidette_protocol.ext.markers import ModelData as ModelData
from vidette_protocol.ext.outside import Outside as Outside
from vidette_protocol.ext.pointers import pointers_in as pointers_in
from vidette_protocol.ext.tensors import restore_tensor as restore_tensor
