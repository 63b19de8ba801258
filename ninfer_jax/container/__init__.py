"""The `.ninfer` container: checked reading of revisions 1 and 2, streamed writing of revision 2 (container)."""

from ninfer_jax.container.part_writer import MissingRange as MissingRange, PartWriter as PartWriter
from ninfer_jax.container.plan import (
    ArtifactPlan as ArtifactPlan,
    ResourceEntry as ResourceEntry,
    TensorEntry as TensorEntry,
    plan_artifact as plan_artifact,
)
from ninfer_jax.container.reader import Artifact as Artifact, open_artifact as open_artifact
from ninfer_jax.container.schema import (
    RAW_BYTES as RAW_BYTES,
    Identity as Identity,
    ResourceObject as ResourceObject,
    StoredObject as StoredObject,
    TensorObject as TensorObject,
)
from ninfer_jax.container.writer import ArtifactWriter as ArtifactWriter
