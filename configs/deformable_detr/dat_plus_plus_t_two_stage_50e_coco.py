_base_ = './dat_plus_plus_t_50e_coco.py'
model = dict(decoder=dict(with_box_refine=True, as_two_stage=True))
