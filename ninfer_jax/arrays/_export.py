"""Names under which `jax.export` writes packed weights among the arguments and results of a serialized program.

The names and the JSON beside them are read back by later versions: they do not change. Products over several devices
under jit are partitioned by a callback, which jax cannot serialize; inside `shard_map` they are serialized too.
"""

import json
from typing import Any

from jax import export

from ninfer_jax.arrays.quantized_tensor import QuantizedTensor
from ninfer_jax.planes import GroupedPlanes, NVFP4Planes, RowScaledPlanes

for _planes in (GroupedPlanes, NVFP4Planes, RowScaledPlanes):
    export.register_namedtuple_serialization(_planes, serialized_name=f"ninfer_jax.{_planes.__name__}")


def _write(static: Any) -> bytes:
    format, k = static
    return json.dumps({"format": format, "k": k}).encode()


def _read(data: bytes | bytearray) -> tuple[str, int]:
    fields = json.loads(bytes(data))
    return fields["format"], fields["k"]


export.register_pytree_node_serialization(
    QuantizedTensor, serialized_name="ninfer_jax.QuantizedTensor", serialize_auxdata=_write, deserialize_auxdata=_read
)
