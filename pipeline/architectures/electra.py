"""ELECTRA's discriminator: a BERT whose tables may be narrower than its layers."""

from pipeline.architectures.architecture import WITH_TYPES, Architecture, ConfigKeys
from pipeline.architectures.bert import LAYOUT, TINY
from pipeline.architectures.patches import fuse_tanh_gelu

ELECTRA = Architecture(
    "electra",
    "ELECTRA discriminators",
    WITH_TYPES,
    tiny_config=TINY | {"embedding_size": 32},
    layout=LAYOUT,
    keys=ConfigKeys(embedding_size="embedding_size"),
    patches=(fuse_tanh_gelu,),
    projects_unless_equal=True,
    # Its pre-training head detects replaced tokens and predicts none.
    without_masked_lm=("ElectraForPreTraining",),
)
