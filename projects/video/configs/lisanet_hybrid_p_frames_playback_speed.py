# The baseline that sees no time: one frame in training, and in tests the mean of the
# scores of all 8 frames.
_base_ = 'lisanet_hybrid_p_playback_speed.py'
model = dict(backbone=dict(num_frames=1))
train_pipeline = _base_.train_pipeline
train_pipeline[1] = dict(type='SampleDense', clip_len=1, training=True)
test_pipeline = _base_.test_pipeline
test_pipeline[1] = dict(type='SampleDense', clip_len=1, num_clips=8)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
