# ImageNet-1K at 384 pixels, with short sides of 438 in the test.
_base_ = './imagenet_224.py'
_base_.train_pipeline[1].scale = 384
_base_.test_pipeline[1].scale = 438
_base_.test_pipeline[2].crop_size = 384
train_dataloader = dict(dataset=dict(pipeline=_base_.train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=_base_.test_pipeline))
test_dataloader = val_dataloader
