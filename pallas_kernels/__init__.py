"""Kernels that multiply by packed weights without ever writing the dequantized weight to memory.

Takes raw planes and static parameters; knows nothing of containers, artifacts or the formats registry. Importing this
package never needs a GPU; `unsupported_reason` says what a call would need.
"""

from pallas_kernels.errors import (
    KernelConfigError as KernelConfigError,
    PlaneShapeError as PlaneShapeError,
    UnsupportedKernelError as UnsupportedKernelError,
)
from pallas_kernels.hardware import (
    H100 as H100,
    H200 as H200,
    KNOWN_HARDWARE as KNOWN_HARDWARE,
    Hardware as Hardware,
    hardware_of as hardware_of,
    visible_hardware as visible_hardware,
)
from pallas_kernels.planes import (
    WeightPlanes as WeightPlanes,
    check_planes as check_planes,
    plane_shapes as plane_shapes,
)
from pallas_kernels.tiling import (
    WEIGHT_KINDS as WEIGHT_KINDS,
    DecodeConfig as DecodeConfig,
    WeightKind as WeightKind,
    weight_kind as weight_kind,
)
