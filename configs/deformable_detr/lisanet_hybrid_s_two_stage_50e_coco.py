_base_ = './lisanet_hybrid_s_50e_coco.py'
model = dict(decoder=dict(with_box_refine=True, as_two_stage=True))
