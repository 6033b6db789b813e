"""Table of the modules that moved since version 0.1, by their old names.

`import mmattn.models.heads` still works, and a checkpoint that was pickled with the old
name still finds its class. Version 0.3.0 removes this table, together with the other
deprecated names that CHANGELOG.md lists under 0.2.0.
"""

__all__ = ['MOVED']

MOVED = {
    'mmattn.compat.environment': 'mmattn.analysis.environment',
    'mmattn.compat.finders': 'mmattn.compat.finder',
    'mmattn.engine.atomic_files': 'mmattn.engine.checkpoints.atomic_files',
    'mmattn.engine.checked_dataset': 'mmattn.engine.data.checked_dataset',
    'mmattn.engine.checkpoint': 'mmattn.engine.checkpoints.reader',
    'mmattn.engine.checkpoint_hook': 'mmattn.engine.checkpoints.hook',
    'mmattn.engine.dataloader': 'mmattn.engine.data.loaders',
    'mmattn.engine.dataset_build': 'mmattn.engine.data.build',
    'mmattn.engine.dataset_check': 'mmattn.engine.data.checks',
    'mmattn.engine.image_file': 'mmattn.engine.data.image_files',
    'mmattn.engine.load_report': 'mmattn.engine.checkpoints.load_report',
    'mmattn.engine.weights': 'mmattn.engine.checkpoints.weights',
    'mmattn.models.coco_category_ids': 'mmattn.models.checkpoints.coco_classes',
    'mmattn.models.deformable_detr': 'mmattn.models.detectors.deformable_detr',
    'mmattn.models.deformable_detr_checkpoints': (
        'mmattn.models.checkpoints.deformable_detr'
    ),
    'mmattn.models.distillation': 'mmattn.models.classifiers.distilled',
    'mmattn.models.heads': 'mmattn.models.necks.pooled_mlp',
    'mmattn.models.mask2former_pixel_decoder': (
        'mmattn.models.necks.mask2former_pixel_decoder'
    ),
    'mmattn.models.ms_deform_attn_neck': 'mmattn.models.necks.ms_deform_attn_neck',
    'mmattn.models.backbones.pvt_checkpoints': 'mmattn.models.checkpoints.pvt',
    'mmattn.models.layers.neighborhood_tiles': (
        'mmattn.ops.neighborhood_attention.tiles'
    ),
    'mmattn.models.layers.masked_attention': 'mmattn.models.layers.masked.attention',
    'mmattn.models.layers.masking': 'mmattn.models.layers.masked.masking',
    'mmattn.models.layers.random_mask': 'mmattn.models.layers.masked.random_mask',
    'mmattn.models.layers.relative_position': (
        'mmattn.models.layers.masked.relative_attention'
    ),
    'mmattn.models.layers.structure_aware_attention': (
        'mmattn.models.layers.structure_aware.attention'
    ),
    'mmattn.models.layers.lisa_variants': (
        'mmattn.models.layers.structure_aware.variants'
    ),
    'mmattn.models.layers.deformable_detr_encoder': (
        'mmattn.models.layers.deformable_detr.encoder'
    ),
    'mmattn.models.layers.deformable_detr_decoder': (
        'mmattn.models.layers.deformable_detr.decoder'
    ),
}
