_base_ = './pvt_v2_b2_50e_coco.py'
model = dict(decoder=dict(with_box_refine=True, as_two_stage=True))
