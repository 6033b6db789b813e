# COCO 2017 with boxes and masks, at the single scale (1333, 800).
_base_ = './coco_detection.py'
_base_.train_pipeline[1].with_mask = True
_base_.test_pipeline[2].with_mask = True
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
