_base_ = './r50_50e_coco.py'
model = dict(decoder=dict(with_box_refine=True))
